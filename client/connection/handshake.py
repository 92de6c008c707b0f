"""Which header format a peer gets: msgpack only who announced on the same connection that it reads it.

The client's heartbeat says in an additional field that it knows msgpack.  A triomq broker says so too in its answer;
Apache's ignores the field.  From then on, and until that connection ends, the broker gets msgpack.  JSON and ROCKETMQ
are RocketMQ's own and need no announcement.

Source: design.md, "Three header serialisations".
"""

from collections.abc import Mapping
from typing import Final

from triomq.protocol.codes import SerializeType
from triomq.protocol.wire.serialization import FORMATS_FIELD, MSGPACK_NAME

_JSON: Final = int(SerializeType.JSON)
_MSGPACK: Final = int(SerializeType.MSGPACK)


def first_format(wanted: SerializeType) -> int:
    """Return the format for a peer of which nothing is known yet."""
    return _JSON if wanted is SerializeType.MSGPACK else int(wanted)


def offered_fields(wanted: SerializeType) -> dict[str, str]:
    """Return the fields of a heartbeat that offer the wanted format, if it needs an offer."""
    return {FORMATS_FIELD: MSGPACK_NAME} if wanted is SerializeType.MSGPACK else {}


def agreed_format(wanted: SerializeType, answered: Mapping[str, str]) -> int:
    """Return the format for a peer that answered a heartbeat with these fields."""
    if wanted is SerializeType.MSGPACK and MSGPACK_NAME in answered.get(FORMATS_FIELD, "").split(","):
        return _MSGPACK
    return first_format(wanted)
