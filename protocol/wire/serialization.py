"""The three ways to write a command's header, in one table: JSON, ROCKETMQ binary, msgpack.

Rules: a decoder raises ProtocolError and nothing else; every ``ext_fields`` name and value it leaves is a ``str``;
memory and time are linear in the length of the header, which the caller limits, whatever lengths stand in it.

Source: wire.md 2.2 (JSON), 2.3 (ROCKETMQ).  msgpack is our own: an array of the seven fields in the order of
:data:`_MSGPACK_FIELDS`; it is sent only to a peer that is known to read it.
"""

import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgpack
import orjson

from triomq.protocol.codes import LanguageCode, SerializeType
from triomq.protocol.errors import ProtocolError
from triomq.protocol.wire.headers import parse_integer

if TYPE_CHECKING:
    from triomq.protocol.wire.command import RemotingCommand

#: Field of a heartbeat and of its answer: header formats beyond RocketMQ's own that the sender reads, joined by commas.
FORMATS_FIELD: Final = "triomqHeaderFormats"
MSGPACK_NAME: Final = "msgpack"

_LANGUAGE_NAMES: Final = {int(code): code.name for code in LanguageCode}
_LANGUAGE_CODES: Final = {code.name: int(code) for code in LanguageCode}
UNKNOWN_LANGUAGE: Final = -1

_JSON: Final = int(SerializeType.JSON)
_INT32_LIMIT: Final = 2**31
_INT32_MIN: Final = -_INT32_LIMIT
_INT32_MAX: Final = _INT32_LIMIT - 1


def encode_header(command: "RemotingCommand") -> bytes:
    """Write the header in ``command.serialize_type``.

    Raises:
        ProtocolError: a value does not fit, or the type is unknown.
    """
    encoder = _ENCODERS.get(command.serialize_type)
    if encoder is None:
        raise ProtocolError(f"unknown header serialisation {command.serialize_type}")
    try:
        return encoder(command)
    except (struct.error, TypeError, OverflowError, ValueError, AttributeError) as exc:
        raise ProtocolError(f"header of code {command.code} cannot be written: {exc}") from exc


def decode_header(command: "RemotingCommand", serialize_type: int, header: bytes) -> None:
    """Fill every field of ``command`` but its body.

    Raises:
        ProtocolError: unknown type, or a header that cannot be read.
    """
    decoder = _DECODERS.get(serialize_type)
    if decoder is None:
        raise ProtocolError(f"unknown header serialisation {serialize_type}")
    command.serialize_type = serialize_type
    try:
        decoder(command, header)
    except ProtocolError:
        raise
    except (ValueError, TypeError, struct.error, RecursionError) as exc:
        raise ProtocolError(f"header cannot be read: {type(exc).__name__}: {exc}") from exc


# --- JSON ---------------------------------------------------------------------------------------------------


def _encode_json(command: "RemotingCommand") -> bytes:
    if not _INT32_MIN <= command.opaque <= _INT32_MAX:
        raise _opaque_overflow(command)
    # The minimal header that Java 4.9, 5.x and Go accept: what is left out is what no reader uses.
    header: dict[str, object] = {
        "code": command.code,
        "extFields": command.ext_fields,
        "flag": command.flag,
        "language": _LANGUAGE_NAMES.get(command.language, "OTHER"),
        "opaque": command.opaque,
        "version": command.version,
    }
    if command.remark is not None:
        header["remark"] = command.remark
    return orjson.dumps(header)


def _opaque_overflow(command: "RemotingCommand") -> ProtocolError:
    """Tell the one whose counter ran over, since the peer would only close the connection."""
    return ProtocolError(f"opaque {command.opaque} of code {command.code} is not an int32")


def _decode_json(command: "RemotingCommand", header: bytes) -> None:
    fields = orjson.loads(header)
    if type(fields) is not dict:
        raise ProtocolError(f"JSON header is not an object but {type(fields).__name__}")
    fill_from_json(command, fields)


def fill_from_json(command: "RemotingCommand", fields: Mapping[str, Any]) -> None:
    """Fill every field of ``command`` but its body from the object that a JSON header holds.

    Raises:
        ProtocolError: a field cannot be read.
    """
    command.serialize_type = _JSON
    get = fields.get
    code = get("code")
    opaque = get("opaque", 0)
    flag = get("flag", 0)
    version = get("version", 0)
    if not (
        type(code) is type(opaque) is type(flag) is type(version) is int
        and 0 <= (code | opaque | flag | version) <= _INT32_MAX  # so each of them is
    ):
        code, opaque, flag, version = (
            _lenient_int32(name, value)
            for name, value in (("code", code), ("opaque", opaque), ("flag", flag), ("version", version))
        )
    command.code = code
    command.opaque = opaque
    command.flag = flag
    command.version = version
    language = get("language", "JAVA")
    command.language = _LANGUAGE_CODES.get(language, UNKNOWN_LANGUAGE) if type(language) is str else _ordinal(language)
    remark = get("remark")
    command.remark = remark if remark is None or type(remark) is str else _text(remark)
    command.ext_fields = _ext_fields(get("extFields"))


def _lenient_int32(name: str, value: Any) -> int:
    """Read a number as Java does: null is as good as absent, text is a number if ``parseInt`` takes it."""
    if value is None and name != "code":
        return 0
    if type(value) is str:
        try:
            return parse_integer(value, _INT32_LIMIT)
        except ValueError as exc:
            raise ProtocolError(f"header field {name!r} {exc}") from None
    return _int32(name, value)


def _int32(name: str, value: Any) -> int:
    if type(value) is not int or not _INT32_MIN <= value <= _INT32_MAX:
        raise ProtocolError(f"header field {name!r} is not an int32: {value!r:.40}")
    return value


def _ordinal(language: Any) -> int:
    return language if type(language) is int and language in _LANGUAGE_NAMES else UNKNOWN_LANGUAGE


def _ext_fields(found: Any) -> dict[str, str]:
    if found is None:
        return {}
    if type(found) is not dict:
        raise ProtocolError(f"extFields is not an object but {type(found).__name__}")
    try:
        "".join(found.values())  # the quickest test that all values are text
    except TypeError:
        # Java writes values that are not text as text, and drops null
        return {name: _text(value) for name, value in found.items() if value is not None}
    return found


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return orjson.dumps(value).decode()


# --- ROCKETMQ -----------------------------------------------------------------------------------------------

_FIXED: Final = struct.Struct(">hBhiii")  # code, language, version, opaque, flag, remark length
_INT32: Final = struct.Struct(">i")
_KEY_LENGTH: Final = struct.Struct(">h")


def _encode_rocketmq(command: "RemotingCommand") -> bytes:
    remark = (command.remark or "").encode()
    language = command.language if command.language in _LANGUAGE_NAMES else int(LanguageCode.OTHER)
    entries = bytearray()
    for name, value in command.ext_fields.items():
        name_bytes, value_bytes = name.encode(), value.encode()
        entries += _KEY_LENGTH.pack(len(name_bytes))
        entries += name_bytes
        entries += _INT32.pack(len(value_bytes))
        entries += value_bytes
    fixed = _FIXED.pack(command.code, language, command.version, command.opaque, command.flag, len(remark))
    return b"".join((fixed, remark, _INT32.pack(len(entries)), entries))


def _decode_rocketmq(command: "RemotingCommand", header: bytes) -> None:
    code, language, version, opaque, flag, remark_length = _FIXED.unpack_from(header)
    command.code = code
    command.language = language if language in _LANGUAGE_NAMES else UNKNOWN_LANGUAGE
    command.version = version
    command.opaque = opaque
    command.flag = flag
    position = _FIXED.size
    end = position + _length(remark_length, len(header) - position, "remark")
    command.remark = header[position:end].decode() or None
    (ext_length,) = _INT32.unpack_from(header, end)
    position = end + _INT32.size
    end = position + _length(ext_length, len(header) - position, "extFields")
    ext_fields: dict[str, str] = {}
    while position < end:
        (key_length,) = _KEY_LENGTH.unpack_from(header, position)
        position += 2
        key_end = position + key_length
        if key_length < 0 or key_end > end:
            _length(key_length, end - position, "key")
        (value_length,) = _INT32.unpack_from(header, key_end)
        value_start = key_end + 4
        value_end = value_start + value_length
        if value_length < 0 or value_end > end:
            _length(value_length, end - value_start, "value")
        ext_fields[header[position:key_end].decode()] = header[value_start:value_end].decode()
        position = value_end
    command.ext_fields = ext_fields


def _length(length: int, available: int, what: str) -> int:
    if not 0 <= length <= available:
        raise ProtocolError(f"{what} of {length} bytes where {available} are left in the header")
    return length


# --- msgpack ------------------------------------------------------------------------------------------------

_MSGPACK_FIELDS: Final = ("code", "language", "version", "opaque", "flag", "remark", "ext_fields")


def _encode_msgpack(command: "RemotingCommand") -> bytes:
    if not _INT32_MIN <= command.opaque <= _INT32_MAX:
        raise _opaque_overflow(command)
    packed: bytes = msgpack.packb([getattr(command, name) for name in _MSGPACK_FIELDS])
    return packed


def _decode_msgpack(command: "RemotingCommand", header: bytes) -> None:
    try:
        fields = msgpack.unpackb(header)
    except (msgpack.exceptions.UnpackException, ValueError) as exc:
        raise ProtocolError(f"msgpack header cannot be read: {type(exc).__name__}: {exc}") from exc
    if type(fields) is not list or len(fields) != len(_MSGPACK_FIELDS):
        raise ProtocolError("msgpack header is not an array of seven fields")
    code, language, version, opaque, flag, remark, ext_fields = fields
    command.code = _int32("code", code)
    command.language = _int32("language", language)
    command.version = _int32("version", version)
    command.opaque = _int32("opaque", opaque)
    command.flag = _int32("flag", flag)
    if remark is not None and type(remark) is not str:
        raise ProtocolError("msgpack header's remark is not text")
    command.remark = remark
    if type(ext_fields) is not dict:
        raise ProtocolError(f"msgpack header's ext_fields are not a map but {type(ext_fields).__name__}")
    "".join(ext_fields)  # TypeError, unless all names and values are text
    "".join(ext_fields.values())
    command.ext_fields = ext_fields


_ENCODERS: Final[Mapping[int, Callable[["RemotingCommand"], bytes]]] = {
    int(SerializeType.JSON): _encode_json,
    int(SerializeType.ROCKETMQ): _encode_rocketmq,
    int(SerializeType.MSGPACK): _encode_msgpack,
}
_DECODERS: Final[Mapping[int, Callable[["RemotingCommand", bytes], None]]] = {
    int(SerializeType.JSON): _decode_json,
    int(SerializeType.ROCKETMQ): _decode_rocketmq,
    int(SerializeType.MSGPACK): _decode_msgpack,
}
