"""Binary headers: RocketMQ's, and our array in msgpack of the values of ``HeaderValues``.

Source: wire.md 2.3, RocketMQSerializable.java; design.md, "Three header serialisations".
"""

from struct import Struct
from typing import Final

import msgpack

from triomq.protocol.codes import LanguageCode, SerializeType
from triomq.protocol.errors import ProtocolError
from triomq.protocol.wire.header_format import LANGUAGE_NAMES, HeaderFormat, HeaderValues, known_language, read_int32

_FIXED: Final = Struct(">hBhiii")  # code, language, version, opaque, flag, remark length
_INT32: Final = Struct(">i")
_KEY_LENGTH: Final = Struct(">h")
_MSGPACK_FIELDS: Final = 7


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
    language = language if language in LANGUAGE_NAMES else int(LanguageCode.OTHER)
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
    return code, known_language(language), version, opaque, flag, remark, ext_fields


def _check_length(length: int, available: int, what: str) -> int:
    if not 0 <= length <= available:
        raise ProtocolError(f"{what} of {length} bytes where {available} are left in the header")
    return length


ROCKETMQ: Final = HeaderFormat(int(SerializeType.ROCKETMQ), _encode_rocketmq, _decode_rocketmq)


def _encode_msgpack(  # the values of a header
    code: int, language: int, version: int, opaque: int, flag: int, remark: str | None, ext_fields: dict[str, str]
) -> bytes:
    values = code, language, version, opaque, flag, remark, ext_fields
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
    return (
        read_int32("code", code),
        read_int32("language", language),
        read_int32("version", version),
        read_int32("opaque", opaque),
        read_int32("flag", flag),
        remark,
        ext_fields,
    )


MSGPACK: Final = HeaderFormat(int(SerializeType.MSGPACK), _encode_msgpack, _decode_msgpack, offered_as="msgpack")
