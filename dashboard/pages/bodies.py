"""Bodies and names of messages as text that a page can show: no control characters, bounded."""

import json
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgpack
from msgpack.exceptions import UnpackException

from triomq.protocol.errors import ProtocolError, TriomqError
from triomq.protocol.record.compression import decompress
from triomq.protocol.record.message import MessageExt

#: Characters that would be invisible become visible; line breaks and tabs stay.
_VISIBLE: Final = {code: 0x2400 + code for code in range(32) if code not in (9, 10)} | {0x7F: 0x2421}
_HIDDEN: Final = dict.fromkeys((*range(0x80, 0xA0), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF), "\ufffd")
_TABLE: Final = _VISIBLE | _HIDDEN
_LINE: Final = _TABLE | {9: " ", 10: "\u23ce"}

_START_CHARACTERS: Final = 120
#: A compressed body that is longer has no start in a list: a small one could become a large one.
_START_BYTES: Final = 64 * 1024
_PART: Final = 64 * 1024
#: Longer bodies are not arranged as JSON.
_MOST_ARRANGED: Final = 1024 * 1024
_HEX_BYTES: Final = 16
_HEX_WIDTH: Final = 78


def visible(text: str) -> str:
    """Return text with control characters, and halves of characters, made visible."""
    return text.translate(_TABLE)


def start_of(message: MessageExt) -> str | None:
    """Return the start of a body in one line; ``None``: it is binary, or compressed and too long."""
    try:
        body = decompress(message.stored_body, message.sys_flag, _START_BYTES)
    except (ProtocolError, TriomqError):
        return None
    part = body[: 4 * _START_CHARACTERS]
    try:
        text = getincrementaldecoder("utf-8")().decode(part, final=len(part) == len(body))
    except UnicodeDecodeError:
        return None
    if "\0" in text:
        return None
    return text[:_START_CHARACTERS].translate(_LINE) + ("…" if len(text) > _START_CHARACTERS else "")


class Body(NamedTuple):
    """One part of a body as a page shows it.

    Attributes:
        kind: ``text``, ``json``, ``msgpack`` or ``hex``.
        text: of this part.
        part: its number, from 1 on.
        has_more: whether there is another part.
        size: of the whole body in bytes.
        note: why it is not shown as wanted; "": it is.
    """

    kind: str
    text: str
    part: int
    has_more: bool
    size: int
    note: str = ""


KINDS: Final = ("text", "json", "msgpack", "hex")


def show(message: MessageExt, kind: str, part: int) -> Body:
    """Return a part of a body; ``kind`` is one of ``KINDS``, or "" for the one that suits it.

    However large or hostile the body is, the work is bounded: by the longest body that the client accepts.
    """
    note = ""
    try:
        content = message.body
    except (ProtocolError, TriomqError) as exc:
        content, note = message.stored_body, f"It is shown as it is stored: {exc}"
    begin = (part - 1) * _PART
    for found in (kind,) if kind in KINDS else ("json", "text", "msgpack", "hex"):
        with suppress(ValueError, TypeError, RecursionError, UnpackException):
            text, has_more = _part(content, found, begin, is_strict=kind != found)
            return Body(found, visible(text), part, has_more, len(content), note)
    text, has_more = _part(content, "hex", begin, is_strict=False)
    return Body("hex", text, part, has_more, len(content), note or f"It cannot be shown as {kind}.")


def _part(content: bytes, kind: str, begin: int, *, is_strict: bool) -> tuple[str, bool]:
    """Return a part of a body as text, and whether there is more; ``ValueError`` and others: not of this kind."""
    if kind == "hex":
        begin = begin // _HEX_WIDTH * _HEX_BYTES
        end = begin + _PART // _HEX_WIDTH * _HEX_BYTES
        return "\n".join(_hex_lines(content, begin, min(end, len(content)))), end < len(content)
    if kind == "text":
        text = content.decode(errors="strict" if is_strict else "replace")
        if is_strict and "\0" in text:
            raise ValueError("binary")
        return text[begin : begin + _PART], begin + _PART < len(text)
    if len(content) > _MOST_ARRANGED:
        raise ValueError("too long")
    if kind == "json":
        value = json.loads(content)
    else:
        value = _plain(msgpack.unpackb(content, strict_map_key=False, timestamp=0))
    if is_strict and not isinstance(value, dict | list):
        raise ValueError("a single value")
    return _arranged(value, begin)


def _hex_lines(content: bytes, begin: int, end: int) -> Iterator[str]:
    for at in range(begin, end, _HEX_BYTES):
        row = content[at : min(at + _HEX_BYTES, end)]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)  # printable ASCII
        yield f"{at:08x}  {row.hex(' '):<47}  {letters}"


def _arranged(value: Any, begin: int) -> tuple[str, bool]:
    """Return a part of a value as JSON with line breaks; it is made only until the end of this part."""
    pieces, length, end = [], 0, begin + _PART
    for piece in json.JSONEncoder(ensure_ascii=False, indent=1).iterencode(value):
        if length + len(piece) > begin:
            pieces.append(piece[max(0, begin - length) : end - length])
        length += len(piece)
        if length > end:
            return "".join(pieces), True
    return "".join(pieces), False


def _plain(value: Any) -> Any:
    """Return a value of msgpack with those that JSON lacks as text."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple) and not isinstance(value, msgpack.ExtType):
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
