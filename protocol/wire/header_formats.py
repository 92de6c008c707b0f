"""All header formats, and how two peers agree on one of them.

JSON and ROCKETMQ are RocketMQ's own, so every peer reads them.  Any other format is sent only on a connection whose
peer offered it: the client names the formats it reads in a field of its heartbeat, and a triomq broker answers with
those that it reads too.  Apache's brokers ignore the field.

Source: design.md, "Three header serialisations".
"""

from collections.abc import Mapping
from typing import Final

from triomq.protocol.codes import SerializeType
from triomq.protocol.wire.binary_headers import MSGPACK, ROCKETMQ
from triomq.protocol.wire.header_format import HeaderFormat
from triomq.protocol.wire.json_header import JSON

FORMATS: Final[Mapping[int, HeaderFormat]] = {
    header_format.serialize_type: header_format for header_format in (JSON, ROCKETMQ, MSGPACK)
}
"""By number."""

# Looking up functions costs less than attributes of a format.
ENCODERS: Final = {number: header_format.encode for number, header_format in FORMATS.items()}
DECODERS: Final = {number: header_format.decode for number, header_format in FORMATS.items()}

#: Field of a heartbeat and of its answer: names of formats, joined by commas.
FORMATS_FIELD: Final = "triomqHeaderFormats"


def first_format(wanted: SerializeType) -> int:
    """Return the format for a peer that has not answered a heartbeat yet."""
    return int(wanted if FORMATS[wanted].offered_as is None else SerializeType.JSON)


def offer(wanted: SerializeType) -> dict[str, str]:
    """Return the fields of a heartbeat that offer a format; empty for one that every peer reads."""
    name = FORMATS[wanted].offered_as
    return {} if name is None else {FORMATS_FIELD: name}


def accept(offered: Mapping[str, str]) -> dict[str, str]:
    """Return the fields that answer a heartbeat with these fields: the offered formats that we read."""
    known = {header_format.offered_as for header_format in FORMATS.values()}
    names = [name for name in _names(offered) if name in known]
    return {FORMATS_FIELD: ",".join(names)} if names else {}


def agreed_format(wanted: SerializeType, answered: Mapping[str, str]) -> int:
    """Return the format for a peer that answered a heartbeat with these fields."""
    return int(wanted) if FORMATS[wanted].offered_as in _names(answered) else first_format(wanted)


def _names(fields: Mapping[str, str]) -> list[str]:
    return fields.get(FORMATS_FIELD, "").split(",")
