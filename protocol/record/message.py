"""A message as users write it, and as they receive it.

Source: Message.java, MessageExt.java; wire.md 10; rules for names: Validators.java, TopicValidator.java.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Any, Final

from triomq.protocol.errors import ClientError, MessageIllegalError, MessageTypeError
from triomq.protocol.host import format_host
from triomq.protocol.java import BLANKS
from triomq.protocol.message_queue import QueueOffset
from triomq.protocol.record.compression import DEFAULT_MAX_BODY_BYTES, decompress
from triomq.protocol.record.layout import Head
from triomq.protocol.record.message_id import offset_message_id
from triomq.protocol.record.properties import PropertyName, decode_properties, get_property
from triomq.protocol.typed import check_fields

_COMPRESSED: Final = 1
#: A decompressed body above this is not kept: 64 messages of an answer could become gigabytes.
_MAX_KEPT_BODY_BYTES: Final = 512 * 1024
_TAGS: Final = PropertyName.TAGS.encode()
_KEYS: Final = PropertyName.KEYS.encode()
_UNIQUE_KEY: Final = PropertyName.UNIQUE_KEY.encode()

#: Why :func:`is_selectable` is false.
NOT_SELECTABLE: Final = "no consumer can select a tag that begins or ends with a blank, or contains ||"

#: Names with fields in ``Message``, and names for the bookkeeping of clients and brokers.
RESERVED_PROPERTY_NAMES: Final = frozenset(value for name, value in vars(PropertyName).items() if name.isupper()) - {
    PropertyName.CHECK_IMMUNITY_TIME_IN_SECONDS,  # for users
    PropertyName.START_DELIVER_TIME,
}


@dataclass(frozen=True, slots=True)
class Message:
    """A message to be sent.

    Attributes:
        topic: its destination.
        body: the bytes to deliver.
        tags: one tag that consumers can select by.
        keys: keys to find the message by: several without blanks, or one text with keys separated by blanks.
        properties: the user's own; ``RESERVED_PROPERTY_NAMES`` are rejected.
        flag: 32 bits for the user, not interpreted.
        delay_level: 0 = immediately; 1..18 = 1s 5s 10s 30s 1m ... 2h by default (a setting of the broker).
        delay_s: time from sending to delivery; for triomq and 5.x brokers, 4.9 brokers deliver immediately.
        deliver_at: time of delivery, likewise; a time without a zone is local time.
        wait_store_ok: whether a broker that flushes synchronously answers only after the flush.
        sharding_key: messages with equal keys belong together (5.x brokers read it).

    Raises:
        MessageIllegalError: an invalid value or combination; as MessageTypeError a value of the wrong type.
    """

    topic: str
    body: bytes
    _: KW_ONLY
    tags: str | None = None
    keys: Sequence[str] | str = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    delay_level: int = 0
    delay_s: float = 0.0
    deliver_at: datetime | None = None
    wait_store_ok: bool = True
    sharding_key: str | None = None

    def __post_init__(self) -> None:  # per message: fields that are not given are not checked
        try:
            if not (isinstance(self.body, bytes) and isinstance(self.topic, str)):  # type: ignore[redundant-expr]
                check_fields(self, MessageTypeError)  # type: ignore[unreachable]  # callers without a type checker
            if self.tags and not is_selectable(self.tags):
                raise MessageIllegalError(f"tags {self.tags[:80]!r}: {NOT_SELECTABLE}")
            if self.keys and " " in "".join(self.keys) and not isinstance(self.keys, str):
                raise MessageIllegalError(f"keys {list(self.keys)!r:.80}: a key has no blanks, which separate keys")
            if self.delay_level or self.delay_s or self.deliver_at is not None:
                self._check_delay()
            if self.properties or self.flag or self.sharding_key:
                self._check_others()
        except (TypeError, AttributeError):  # Python's text is about this code
            check_fields(self, MessageTypeError)
            raise

    def _check_delay(self) -> None:
        if self.deliver_at is not None and not isinstance(self.deliver_at, datetime):
            check_fields(self, MessageTypeError)  # type: ignore[unreachable]
        if self.delay_level < 0:
            raise MessageIllegalError(f"delay level {self.delay_level}: must be 0 (at once) or above")
        if not 0 <= self.delay_s < math.inf:
            raise MessageIllegalError(f"delay of {self.delay_s} s: must be 0 (at once) or above")
        if (self.delay_level > 0) + (self.delay_s > 0) + (self.deliver_at is not None) > 1:
            raise MessageIllegalError("give one of delay_level, delay_s and deliver_at")

    def _check_others(self) -> None:
        if not -(2**31) <= self.flag < 2**31:
            raise MessageIllegalError(f"flag {self.flag}: must be a signed 32 bit number")
        if self.properties:
            "".join(self.properties.values())
        if self.sharding_key:
            "".join(self.sharding_key)
        if not RESERVED_PROPERTY_NAMES.isdisjoint(self.properties):
            names = sorted(RESERVED_PROPERTY_NAMES.intersection(self.properties))
            raise MessageIllegalError(f"properties {', '.join(names)}: RocketMQ's own names; use the fields of Message")

    @property
    def is_delayed(self) -> bool:
        """Whether it is delivered later than it is sent."""
        return bool(self.delay_level or self.delay_s or self.deliver_at is not None)

    def all_properties(self) -> dict[str, str]:
        """Return a new dict of all properties to send: the user's, tags, keys, delay, WAIT.

        The producer adds the unique id and then calls ``encode_properties``.
        """
        properties = dict(self.properties)
        if self.tags:
            properties[PropertyName.TAGS] = self.tags
        if keys := self.keys if isinstance(self.keys, str) else " ".join(self.keys):
            properties[PropertyName.KEYS] = keys
        if self.delay_level:
            properties[PropertyName.DELAY_TIME_LEVEL] = str(self.delay_level)
        elif self.delay_s:
            properties[PropertyName.TIMER_DELAY_MILLIS] = str(round(self.delay_s * 1000))
        elif self.deliver_at is not None:
            properties[PropertyName.TIMER_DELIVER_MILLIS] = str(round(self.deliver_at.timestamp() * 1000))
        if self.sharding_key:
            properties[PropertyName.SHARDING_KEY] = self.sharding_key
        properties[PropertyName.WAIT_STORE_MSG_OK] = "true" if self.wait_store_ok else "false"
        return properties


REPLIER: Final[ContextVar[Callable[["MessageExt", bytes], Any]]] = ContextVar("replier")
"""What :meth:`MessageExt.reply` calls; a push consumer sets it where its handler runs."""


class MessageExt:
    """A stored message: the fixed fields of its record are plain attributes, the rest is decoded on demand.

    ``record.decode_record`` creates one per delivered message, so nothing is frozen or checked again.  It holds only
    copies of its bytes and keeps no buffer alive.

    Attributes:
        store_size: length of the whole record.
        body_crc: CRC-32 of the stored body, without its top bit.
        queue_id: queue within topic and broker.
        flag: the producer's 32 bits.
        queue_offset: number of the message in its queue.
        physical_offset: position in the broker's commit log.
        sys_flag: bits of ``MessageSysFlag``.
        born_timestamp: producer's clock when it was sent, in ms.
        store_timestamp: broker's clock when it was stored, in ms.
        encoded_born_host, encoded_store_host: addresses of producer and broker as in the record, see
            ``triomq.protocol.host``.
        reconsume_times: how often its consumption failed so far.
        prepared_transaction_offset: commit log position of the half message, else 0.
        stored_body: the body as stored, perhaps compressed.
        max_body_bytes: limit of the decompressed body; the client that pulled it sets its own.
        broker_name: set by the client that pulled it, else "".
        queue_bounds: first offset and end of the queue from the answer to the pull; set by the client, and then also
            in the properties as MIN_OFFSET and MAX_OFFSET.
    """

    __slots__ = (
        "_body",
        "_properties",
        "_tail",
        "_topic",
        "body_crc",
        "born_timestamp",
        "broker_name",
        "encoded_born_host",
        "encoded_store_host",
        "flag",
        "max_body_bytes",
        "physical_offset",
        "prepared_transaction_offset",
        "queue_bounds",
        "queue_id",
        "queue_offset",
        "reconsume_times",
        "store_size",
        "store_timestamp",
        "stored_body",
        "sys_flag",
    )

    def __init__(self, head: Head, body: bytes, tail: bytes) -> None:
        """Create the message from the parts of a record.

        Args:
            head: the values of ``layout.HEAD``.
            body: the stored body.
            tail: topic length, topic, properties length and properties, already checked.
        """
        (
            self.store_size,
            _,
            self.body_crc,
            self.queue_id,
            self.flag,
            self.queue_offset,
            self.physical_offset,
            self.sys_flag,
            self.born_timestamp,
            self.encoded_born_host,
            self.store_timestamp,
            self.encoded_store_host,
            self.reconsume_times,
            self.prepared_transaction_offset,
            _,
        ) = head
        self.stored_body = body
        self.max_body_bytes = DEFAULT_MAX_BODY_BYTES
        self._tail = tail
        self.broker_name = ""
        self.queue_bounds: tuple[QueueOffset, QueueOffset] | None = None
        self._topic: str | None = None
        self._body: bytes | None = None
        self._properties: dict[str, str] | None = None

    @property
    def topic(self) -> str:
        """The topic; a client that consumes a retry topic sets it to the original one."""
        if self._topic is None:
            self._topic = str(self._tail[1 : 1 + self._tail[0]], "utf-8", "replace")
        return self._topic

    @topic.setter
    def topic(self, topic: str) -> None:
        self._topic = topic

    @property
    def encoded_properties(self) -> bytes:
        """The properties as stored, see ``triomq.protocol.record.properties``."""
        return self._tail[3 + self._tail[0] :]

    @property
    def properties(self) -> dict[str, str]:
        """All properties, decoded once; the dict is the caller's to change."""
        if self._properties is None:
            self._properties = decode_properties(self.encoded_properties)
            if self.queue_bounds is not None:
                low, high = self.queue_bounds
                self._properties |= {PropertyName.MIN_OFFSET: str(low), PropertyName.MAX_OFFSET: str(high)}
        return self._properties

    @property
    def user_properties(self) -> dict[str, str]:
        """A new dict without RocketMQ's own names, for forwarding in a ``Message``."""
        return {name: value for name, value in self.properties.items() if name not in RESERVED_PROPERTY_NAMES}

    @property
    def body(self) -> bytes:
        """The body as its producer passed it, decompressed on first access; above 512 KiB on each, so keep it then.

        Raises:
            ProtocolError: the compressed body is damaged or above ``max_body_bytes``, or its compression unknown.
            UnsupportedCompressionError: the package for its compression is not installed.
        """
        if not self.sys_flag & _COMPRESSED:
            return self.stored_body
        if self._body is not None:
            return self._body
        body = decompress(self.stored_body, self.sys_flag, self.max_body_bytes)
        if len(body) <= _MAX_KEPT_BODY_BYTES:
            self._body = body
        return body

    @property
    def tags(self) -> str | None:
        """The tag, ``None`` without one."""
        return self._text(_TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys to find the message by."""
        text = self._text(_KEYS)
        return tuple(key for key in text.split(" ") if key) if text else ()

    @property
    def unique_id(self) -> str | None:
        """The id from its producer, ``None`` without one."""
        return self._text(_UNIQUE_KEY)

    @property
    def message_id(self) -> str:
        """The producer's id, else the offset id; compare it with its case."""
        return self._text(_UNIQUE_KEY) or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """The id of the record's place in the store."""
        return offset_message_id(self.encoded_store_host, self.physical_offset)

    @property
    def born_host(self) -> str:
        """``ip:port`` of the producer, as the broker saw it.

        Raises:
            ProtocolError: the record contains an invalid port.
        """
        return format_host(self.encoded_born_host)

    @property
    def store_host(self) -> str:
        """``ip:port`` of the broker that stored the message.

        Raises:
            ProtocolError: the record contains an invalid port.
        """
        return format_host(self.encoded_store_host)

    def reply(self, body: bytes) -> Any:
        """Reply to a request, in the handler of a push consumer: ``await`` it, but not in a plain function.

        Raises:
            ClientError: the message is no request, or this is not called by a handler.
            BrokerResponseError: the requester has left, or did not take the reply.
        """
        replier = REPLIER.get(None)
        if replier is None:
            raise ClientError("reply: only the handler of a push consumer can reply to a message")
        return replier(self, body)

    def _text(self, name: bytes) -> str | None:
        value = get_property(self.encoded_properties, name)
        return None if value is None else value.decode("utf-8", "replace")

    def __repr__(self) -> str:
        broker = f"{self.broker_name}:" if self.broker_name else ""
        compressed = " compressed" if self.sys_flag & _COMPRESSED else ""
        return (
            f"<MessageExt {self.topic} queue={broker}{self.queue_id} offset={self.queue_offset} "
            f"id={self.message_id} body={len(self.stored_body)} bytes{compressed}>"
        )


def is_selectable(tag: str) -> bool:
    """Whether an expression can select the tag; of each tag in it, blanks at both ends are removed.

    Source: FilterAPI.buildSubscriptionData.
    """
    return bool(tag) and "||" not in tag and tag.strip(BLANKS) == tag
