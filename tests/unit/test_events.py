"""Every warning and error has an event id that ``docs/events.md`` explains."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from triomq.common.logs import event_id

ROOT = Path(__file__).parents[2]
FOLDERS = ("protocol", "common", "storage", "broker", "client", "spark", "dashboard", "cli", "testing", "demo")
LOG = "EventLog"
METHODS = ("warning", "error", "exception")
SILENT = ("logging.INFO", "logging.DEBUG")


def trees() -> Iterator[ast.Module]:
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            yield ast.parse(path.read_text(encoding="utf-8"))


def texts_of(call: ast.Call) -> list[ast.expr]:
    """Return the constant texts of a call that logs warnings or errors."""
    function = call.func
    if isinstance(function, ast.Name) and function.id == LOG:
        return [call.args[1], *(keyword.value for keyword in call.keywords if keyword.arg == "recovery")]
    if not isinstance(function, ast.Attribute) or ast.unparse(function.value) != "LOGGER":
        return []
    if function.attr == "log" and ast.unparse(call.args[0]) not in SILENT:
        return call.args[1:2]
    return call.args[:1] if function.attr in METHODS else []


def test_documentation_lists_exactly_the_logged_events() -> None:
    constants: dict[str, object] = {}
    texts: list[ast.expr] = []
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant):
                constants[ast.unparse(node.target)] = node.value.value
            elif isinstance(node, ast.Call):
                texts += texts_of(node)
    used = {
        event_id(str(text.value if isinstance(text, ast.Constant) else constants[ast.unparse(text)])) for text in texts
    }
    table = (ROOT / "docs" / "events.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `([a-z0-9-]+)` \| ", table, re.MULTILINE)
    assert documented == sorted(documented)
    assert set(documented) == used
    assert len(used) > 100
