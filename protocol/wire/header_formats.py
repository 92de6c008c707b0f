"""All header formats, and how two peers agree on one of them.

JSON and ROCKETMQ are RocketMQ's own, so every peer reads them.  Any other format is sent only on a connection whose
peer offered it: the client names the formats it reads in a field of its heartbeat, and a triomq broker answers with
those that it reads too.  Apache's brokers ignore the field.  MSGPACK is ours, an array of the values of a header.

Rules: a decoder raises ProtocolError, ValueError, TypeError, ``struct.error`` or RecursionError and nothing else; all
``ext_fields`` names and values are ``str``; memory and time are linear in the length of the header, which the caller
limits, whatever lengths it claims.

Source: wire.md 2.2, 2.3; RocketMQSerializable.java; design.md, "Three header serialisations".
"""

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, Final, TypeAlias

import msgpack
import orjson

from triomq.protocol.codes import LanguageCode, SerializeType
from triomq.protocol.errors import ProtocolError
from triomq.protocol.wire.headers import parse_integer

HeaderValues: TypeAlias = tuple[int, int, int, int, int, str | None, dict[str, str]]
"""Code, language, version, opaque, flag, remark, ext_fields."""

_LANGUAGE_NAMES: Final = {int(code): code.name for code in LanguageCode}
UNKNOWN_LANGUAGE: Final = -1

INT32_MAX: Final = 2**31 - 1
INT32_MIN: Final = -(2**31)


def _read_int32(name: str, value: Any) -> int:
    """Accept a number that fits an int32.

    Raises:
        ProtocolError: it does not; the text names the field.
    """
    if type(value) is not int or not INT32_MIN <= value <= INT32_MAX:
        raise ProtocolError(f"header field {name!r} is not an int32: {value!r:.40}")
    return value


# --- JSON, the format of nearly all peers -------------------------------------------------------------------

#: By name and by number: peers write either.
_LANGUAGES: Final[Mapping[str | int, int]] = {key: int(code) for code in LanguageCode for key in (code.name, int(code))}


class FieldsWithNulls(dict[str, str]):
    """The fields of a header without those that are null; signatures include the names of these."""

    nulls: tuple[str, ...] = ()


def _encode_json(  # the values of a header
    code: int, language: int, version: int, opaque: int, flag: int, remark: str | None, ext_fields: dict[str, str]
) -> bytes:
    header: dict[str, object] = {
        "code": code,
        "extFields": ext_fields,
        "flag": flag,
        "language": _LANGUAGE_NAMES.get(language, "OTHER"),
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",  # the Rust client requires it
        "version": version,
    }
    if remark is not None:
        header["remark"] = remark
    return orjson.dumps(header)


def _decode_json(header: bytes) -> HeaderValues:
    return read_fields(orjson.loads(header))


def read_fields(fields: Any) -> HeaderValues:
    """Return the values of the object that a JSON header holds.

    Raises:
        ProtocolError: it is no object, or a field cannot be read.
    """
    if type(fields) is not dict:
        raise ProtocolError(f"JSON header is not an object but {type(fields).__name__}")
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
    language = _LANGUAGES.get(language, UNKNOWN_LANGUAGE) if type(language) in (str, int) else UNKNOWN_LANGUAGE
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
    return _read_int32(name, value)


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
    return value if isinstance(value, str) else orjson.dumps(value).decode()


# --- RocketMQ's binary format -------------------------------------------------------------------------------

_FIXED: Final = Struct(">hBhiii")  # code, language, version, opaque, flag, remark length
_INT32: Final = Struct(">i")
_KEY_LENGTH: Final = Struct(">h")


def _encode_rocketmq(  # the values of a header
    code: int, language: int, version: int, opaque: int, flag: int, remark: str | None, ext_fields: dict[str, str]
) -> bytes:
    remark_bytes = (remark or "").encode()
    entries = bytearray()
    for name, value in ext_fields.items():
        name_bytes, value_bytes = name.encode(), value.encode()
        entries += _KEY_LENGTH.pack(len(name_bytes))
        entries += name_bytes
        entries += _INT32.pack(len(value_bytes))
        entries += value_bytes
    language = language if language in _LANGUAGE_NAMES else int(LanguageCode.OTHER)
    fixed = _FIXED.pack(code, language, version, opaque, flag, len(remark_bytes))
    return b"".join((fixed, remark_bytes, _INT32.pack(len(entries)), entries))


def _decode_rocketmq(header: bytes) -> HeaderValues:
    code, language, version, opaque, flag, remark_length = _FIXED.unpack_from(header)
    position = _FIXED.size
    end = position + _check_length(remark_length, len(header) - position, "remark")
    remark = header[position:end].decode() or None
    (ext_length,) = _INT32.unpack_from(header, end)
    position = end + _INT32.size
    end = position + _check_length(ext_length, len(header) - position, "extFields")
    ext_fields: dict[str, str] = {}
    while position < end:
        (key_length,) = _KEY_LENGTH.unpack_from(header, position)
        position += 2
        key_end = position + key_length
        if key_length < 0 or key_end > end:
            _check_length(key_length, end - position, "key")
        (value_length,) = _INT32.unpack_from(header, key_end)
        value_start = key_end + 4
        value_end = value_start + value_length
        if value_length < 0 or value_end > end:
            _check_length(value_length, end - value_start, "value")
        ext_fields[header[position:key_end].decode()] = header[value_start:value_end].decode()
        position = value_end
    language = language if language in _LANGUAGE_NAMES else UNKNOWN_LANGUAGE
    return code, language, version, opaque, flag, remark, ext_fields


def _check_length(length: int, available: int, what: str) -> int:
    if not 0 <= length <= available:
        raise ProtocolError(f"{what} of {length} bytes where {available} are left in the header")
    return length


# --- msgpack ------------------------------------------------------------------------------------------------

_MSGPACK_FIELDS: Final = 7


def _encode_msgpack(*values: Any) -> bytes:
    packed: bytes = msgpack.packb(values)
    return packed


def _decode_msgpack(header: bytes) -> HeaderValues:
    try:
        values = msgpack.unpackb(header)
    except (msgpack.exceptions.UnpackException, ValueError) as exc:
        raise ProtocolError(f"msgpack header cannot be read: {type(exc).__name__}: {exc}") from exc
    if type(values) is not list or len(values) != _MSGPACK_FIELDS:
        raise ProtocolError("msgpack header is not an array of seven fields")
    code, language, version, opaque, flag, remark, ext_fields = values
    if remark is not None and type(remark) is not str:
        raise ProtocolError("msgpack header's remark is not text")
    if type(ext_fields) is not dict:
        raise ProtocolError(f"msgpack header's ext_fields are not a map but {type(ext_fields).__name__}")
    "".join(ext_fields)  # TypeError unless all names and values are text
    "".join(ext_fields.values())
    for name, value in zip(("code", "language", "version", "opaque", "flag"), values, strict=False):
        _read_int32(name, value)
    return code, language, version, opaque, flag, remark, ext_fields


# --- agreement ----------------------------------------------------------------------------------------------

_JSON: Final = int(SerializeType.JSON)
_ROCKETMQ: Final = int(SerializeType.ROCKETMQ)
_MSGPACK: Final = int(SerializeType.MSGPACK)
_Encode: TypeAlias = Callable[[int, int, int, int, int, str | None, dict[str, str]], bytes]
_Decode: TypeAlias = Callable[[bytes], HeaderValues]
ENCODERS: Final[Mapping[int, _Encode]] = {_JSON: _encode_json, _ROCKETMQ: _encode_rocketmq, _MSGPACK: _encode_msgpack}
"""Functions that write a header's values, given one by one in the order of ``HeaderValues``."""
DECODERS: Final[Mapping[int, _Decode]] = {_JSON: _decode_json, _ROCKETMQ: _decode_rocketmq, _MSGPACK: _decode_msgpack}
#: Names, in heartbeats, of the formats that are not sent to every peer.
_OFFERED: Final[Mapping[int, str]] = {_MSGPACK: "msgpack"}

#: Field of a heartbeat and of its answer: names of formats, joined by commas.
FORMATS_FIELD: Final = "triomqHeaderFormats"


def first_format(wanted: SerializeType) -> int:
    """Return the format for a peer that has not answered a heartbeat yet."""
    return _JSON if wanted in _OFFERED else int(wanted)


def offer(wanted: SerializeType) -> dict[str, str]:
    """Return the fields of a heartbeat that offer a format; empty for one that every peer reads."""
    return {FORMATS_FIELD: _OFFERED[wanted]} if wanted in _OFFERED else {}


def accept(offered: Mapping[str, str]) -> dict[str, str]:
    """Return the fields that answer a heartbeat with these fields: the offered formats that we read."""
    names = [name for name in _names(offered) if name in _OFFERED.values()]
    return {FORMATS_FIELD: ",".join(names)} if names else {}


def agreed_format(wanted: SerializeType, answered: Mapping[str, str]) -> int:
    """Return the format for a peer that answered a heartbeat with these fields."""
    return int(wanted) if _OFFERED.get(wanted) in _names(answered) else first_format(wanted)


def _names(fields: Mapping[str, str]) -> list[str]:
    return fields.get(FORMATS_FIELD, "").split(",")
