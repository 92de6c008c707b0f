from pathlib import Path
from typing import Final

import pytest

from triomq.protocol.missing import MISSING, explain_missing

CHAPTER: Final = Path(__file__).parents[3] / "docs" / "configuration.md"


@pytest.mark.parametrize("name", ["pop", "POP", "--pop-mode", "popMode", "pop.mode", "pop_mode"])
def test_a_name_is_found_however_it_is_written(name: str) -> None:
    text = explain_missing(name)
    assert text is not None
    assert text.startswith("the proxy protocol (gRPC) of RocketMQ 5.x is not supported yet; instead: ")


def test_what_is_there_or_unknown_is_not_explained() -> None:
    assert [explain_missing(name) for name in ("tags", "credentials", "", "nonsense")] == [None] * 4


def test_the_documentation_has_the_same_table() -> None:
    rows = (f"| {what} | `{names.replace(' ', '`, `')}` | {instead} |\n" for what, names, instead in MISSING)
    assert CHAPTER.read_text(encoding="utf-8").endswith("".join(rows))
