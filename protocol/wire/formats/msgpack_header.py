"""Headers in msgpack, our own: an array of the values of ``HeaderValues``.

Source: design.md, "Three header serialisations".
"""

from typing import Final

import msgpack

from triomq.protocol.codes import SerializeType
from triomq.protocol.errors import ProtocolError
from triomq.protocol.wire.formats.header_format import HeaderFormat, HeaderValues, read_int32

_FIELDS: Final = 7


def _encode(  # the values of a header
    code: int, language: int, version: int, opaque: int, flag: int, remark: str | None, ext_fields: dict[str, str]
) -> bytes:
    values = code, language, version, opaque, flag, remark, ext_fields
    packed: bytes = msgpack.packb(values)
    return packed


def _decode(header: bytes) -> HeaderValues:
    try:
        values = msgpack.unpackb(header)
    except (msgpack.exceptions.UnpackException, ValueError) as exc:
        raise ProtocolError(f"msgpack header cannot be read: {type(exc).__name__}: {exc}") from exc
    if type(values) is not list or len(values) != _FIELDS:
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


FORMAT: Final = HeaderFormat(int(SerializeType.MSGPACK), _encode, _decode, offered_as="msgpack")
