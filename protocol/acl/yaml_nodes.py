"""Reads the YAML files that an operator edits, in YAML 1.1; each error names its line."""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import yaml

from triomq.protocol.errors import ConfigError

TAG: Final = "tag:yaml.org,2002:"
_EXPONENT: Final = re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+")  # a number for RocketMQ, text for PyYAML
_BREAKS: Final = "\r\n\x85\u2028\u2029"
_TAB: Final = "a tab begins or separates something here; use blanks"
_QUOTED: Final = re.compile(r"""'.*'|".*\"""", re.DOTALL)


class _Loader(yaml.SafeLoader):
    """Takes tabs after unquoted text as blanks.

    SnakeYAML 1.30 and 2.0, which RocketMQ uses, do the same, and refuse the tabs that PyYAML refuses elsewhere.
    """

    def scan_plain_spaces(self, indent: int, start_mark: yaml.Mark) -> list[str] | None:
        length = 0
        while self.peek(length) in " \t":
            length += 1
        blanks = self.prefix(length)
        if "\t" in blanks:
            self.forward(length)
            if self.peek() not in _BREAKS:
                return [blanks]
        return super().scan_plain_spaces(indent, start_mark)


def compose(text: str) -> yaml.Node | None:
    """Read a file's text; ``None`` for an empty one.  Errors show no quoted text."""
    try:
        return yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        where = f"line {mark.line + 1}: " if mark is not None else ""
        problem = str(exc.problem or exc.context)
        problem = _TAB if repr("\t") in problem else _QUOTED.sub("...", problem)  # it may be a secret
        raise ConfigError(f"{where}this is not YAML: {problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise ConfigError(f"this is not YAML: {type(exc).__name__}") from None


def error_at(node: yaml.Node, reason: str) -> ConfigError:
    """Return an error that begins with the line."""
    return ConfigError(f"line {node.start_mark.line + 1}: {reason}")


def is_null(node: yaml.Node) -> bool:
    """Whether the value is missing."""
    return bool(node.tag == f"{TAG}null")


def entries_of(node: yaml.Node, what: str) -> dict[str, yaml.Node]:
    """Return the entries of a mapping; ``what`` names the expected entries."""
    if not isinstance(node, yaml.MappingNode):
        raise error_at(node, f"here belong {what}")
    found: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else ""
        if name in found:
            raise error_at(key, f"{name} is given twice")
        found[name] = value
    return found


def fields_of(node: yaml.Node, known: tuple[str, ...]) -> dict[str, yaml.Node]:
    """Return the fields of a mapping that may have only those that are known."""
    if isinstance(node, yaml.MappingNode):
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value not in known:
                raise error_at(key, f"there is no field {getattr(key, 'value', '')!r:.40}, only {', '.join(known)}")
    return entries_of(node, f"the fields {', '.join(known)}")


def items_of(node: yaml.Node | None) -> Iterator[yaml.Node]:
    """Yield the items of a list; none of an empty value."""
    if node is None or is_null(node):
        return
    if not isinstance(node, yaml.SequenceNode):
        raise error_at(node, "here belongs a list, each item after a -")
    yield from node.value


def text_of(node: yaml.Node | None, name: str) -> str:
    """Return text, "" for none; a whole number becomes what YAML 1.1 makes of it, as in RocketMQ."""
    if node is None or is_null(node):
        return ""
    if isinstance(node, yaml.ScalarNode):
        if node.tag == f"{TAG}int":
            with suppress(ValueError):  # digits without a digit, or very many
                return str(yaml.constructor.SafeConstructor().construct_yaml_int(node))
        if node.tag == f"{TAG}str" and not (node.style is None and _EXPONENT.fullmatch(node.value)):
            return str(node.value)
    raise error_at(node, f"{name} is not text: put it in quotes")
