"""Settings as the text of Java properties, ``key=value`` lines.

Source: wire.md 7.4, 7.5; MixAll.java, java.util.Properties.
"""

import re
from collections.abc import Mapping
from typing import Final

_ESCAPES: Final = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)")
_ESCAPED: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}


def properties_text(settings: Mapping[str, str]) -> str:
    """Return ``key=value`` lines that ``java.util.Properties`` reads back exactly: ASCII, with its escapes."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in sorted(settings.items()))


def _escaped(value: str) -> str:
    escaped = "".join(map(_escaped_character, value))
    return "\\" + escaped if escaped.startswith(" ") else escaped  # Java drops leading blanks


def _escaped_character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if " " <= character <= "~":
        return character
    units = character.encode("utf-16-be", "surrogatepass")  # a path may hold undecodable bytes
    return "".join(f"\\u{units[at]:02X}{units[at + 1]:02X}" for at in range(0, len(units), 2))


def read_properties(text: str) -> dict[str, str]:
    """Read ``key=value`` lines with the escapes of ``java.util.Properties``; other lines are comments."""
    found = {}
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if separator and not name.lstrip().startswith(("#", "!")):
            value = _ESCAPE.sub(_unescape, value.lstrip())
            found[name.strip()] = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # joins pairs
    return found


def _unescape(escape: re.Match[str]) -> str:
    code = escape[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPED.get(code, code)
