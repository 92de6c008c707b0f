"""Headers in JSON, the format of nearly all peers.

Source: wire.md 2.2.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from triomq.protocol.codes import LanguageCode, SerializeType
from triomq.protocol.errors import ProtocolError
from triomq.protocol.wire.header_format import (
    INT32_MAX,
    LANGUAGE_NAMES,
    UNKNOWN_LANGUAGE,
    HeaderFormat,
    HeaderValues,
    known_language,
    read_int32,
)
from triomq.protocol.wire.headers import parse_integer

_LANGUAGE_CODES: Final = {code.name: int(code) for code in LanguageCode}


class FieldsWithNulls(dict[str, str]):
    """The fields of a header without those that are null; signatures include the names of these."""

    nulls: tuple[str, ...] = ()


def _encode(  # the values of a header
    code: int, language: int, version: int, opaque: int, flag: int, remark: str | None, ext_fields: dict[str, str]
) -> bytes:
    header: dict[str, object] = {
        "code": code,
        "extFields": ext_fields,
        "flag": flag,
        "language": LANGUAGE_NAMES.get(language, "OTHER"),
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",  # the Rust client requires it
        "version": version,
    }
    if remark is not None:
        header["remark"] = remark
    return orjson.dumps(header)


def _decode(header: bytes) -> HeaderValues:
    fields = orjson.loads(header)
    if type(fields) is not dict:
        raise ProtocolError(f"JSON header is not an object but {type(fields).__name__}")
    return read_fields(fields)


def read_fields(fields: Mapping[str, Any]) -> HeaderValues:
    """Return the values of the object that a JSON header holds.

    Raises:
        ProtocolError: a field cannot be read.
    """
    get = fields.get
    code = get("code")
    opaque = get("opaque", 0)
    flag = get("flag", 0)
    version = get("version", 0)
    if not (
        type(code) is type(opaque) is type(flag) is type(version) is int
        and 0 <= (code | opaque | flag | version) <= INT32_MAX  # so each of them is
    ):
        code, opaque, flag, version = (
            _lenient_int32(name, value)
            for name, value in (("code", code), ("opaque", opaque), ("flag", flag), ("version", version))
        )
    language = get("language", "JAVA")
    language = (
        _LANGUAGE_CODES.get(language, UNKNOWN_LANGUAGE) if type(language) is str else known_language(language)
    )  # fmt: skip
    remark = get("remark")
    if remark is not None and type(remark) is not str:
        remark = _text(remark)
    return code, language, version, opaque, flag, remark, _ext_fields(get("extFields"))


def _lenient_int32(name: str, value: Any) -> int:
    """Read a number as Java does: null counts as absent, and text as by ``parseInt``."""
    if value is None and name != "code":
        return 0
    if type(value) is str:
        try:
            return parse_integer(value, INT32_MAX + 1)
        except ValueError as exc:
            raise ProtocolError(f"header field {name!r} {exc}") from None
    return read_int32(name, value)


def _ext_fields(found: Any) -> dict[str, str]:
    if found is None:
        return {}
    if type(found) is not dict:
        raise ProtocolError(f"extFields is not an object but {type(found).__name__}")
    try:
        "".join(found.values())  # the fastest test that all values are text
    except TypeError:
        # Java turns other values into text, and drops null
        fields = FieldsWithNulls({name: _text(value) for name, value in found.items() if value is not None})
        fields.nulls = tuple(name for name, value in found.items() if value is None)
        return fields
    return found


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return orjson.dumps(value).decode()


JSON: Final = HeaderFormat(int(SerializeType.JSON), _encode, _decode)
