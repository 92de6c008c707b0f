"""The handle by which a delayed message is taken back before it is due.

Source: RocketMQ 5.5.0 RecallMessageHandle.java.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, NamedTuple, Self

from triomq.protocol.errors import ProtocolError

RECALL_TAG: Final = "_RECALL_TAG_"
_VERSION: Final = "v1"
_MAX_DIGITS: Final = 18


class RecallHandle(NamedTuple):
    """Which message waits where.

    Attributes:
        topic: where it will appear.
        broker_name: the broker that has it.
        deliver_ms: when it is due.
        message_id: the unique id its producer gave it.
    """

    topic: str
    broker_name: str
    deliver_ms: int
    message_id: str

    def encode(self) -> str:
        """Return it as clients pass it around."""
        return urlsafe_b64encode(" ".join((_VERSION, *map(str, self))).encode()).decode()

    @classmethod
    def decode(cls, text: str) -> Self:
        """Read a handle.

        Raises:
            ProtocolError: it is none.
        """
        try:
            version, topic, broker_name, deliver_ms, message_id = urlsafe_b64decode(text.encode()).decode().split(" ")
        except ValueError as exc:
            raise ProtocolError("recall handle is invalid") from exc
        if version != _VERSION or not (deliver_ms.isdecimal() and len(deliver_ms) <= _MAX_DIGITS):
            raise ProtocolError("recall handle is invalid")
        return cls(topic, broker_name, int(deliver_ms), message_id)


def delete_key(topic: str, message_id: str) -> str:
    """Return the value of ``TIMER_DEL_UNIQKEY`` in a message that takes another one back, as of RocketMQ 5.3."""
    return f"{topic}+{message_id}"
