"""What a producer prepares once for each topic, so that little is left to do for each message.

Source: behaviour.md B.3, wire.md 5.1.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import count
from typing import Final, NamedTuple

from triomq.client.cluster.route import DEFAULT_TOPIC_QUEUES, Queues, masters_of_route, publish_queues
from triomq.client.environment import RANDOM, wall_clock_ms
from triomq.protocol.bodies.route import TopicRouteData
from triomq.protocol.codes import VERSION, LanguageCode, MessageSysFlag, RequestCode
from triomq.protocol.errors import IllegalNameError, MessageIllegalError, NoRouteError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.names import AUTO_CREATE_TOPIC, FORBIDDEN_TOPICS, RETRY_PREFIX, validate_topic
from triomq.protocol.namespace import Namespace
from triomq.protocol.record.batch import decode_batch, encode_batch
from triomq.protocol.record.message import Message
from triomq.protocol.record.properties import MAX_PROPERTIES_BYTES, PropertyName, decode_properties, encode_properties
from triomq.protocol.wire.frame import build_frame, frame_prefix
from triomq.protocol.wire.header_formats import ENCODERS
from triomq.protocol.wire.signing import Credentials

_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_SEND_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)
_REPLY: Final = int(RequestCode.SEND_REPLY_MESSAGE_V2)
_ZLIB: Final = str(int(MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB))
_PYTHON: Final = int(LanguageCode.PYTHON)
#: Above this a body is sent from where it is; below, one copy is cheaper than a second buffer.
_COPY_LIMIT_BYTES: Final = 32 * 1024
#: What a broker adds to the properties of a message: its cluster's name, and in a batch WAIT once more.
_ADDED_PROPERTIES_BYTES: Final = 160
MAX_SENT_PROPERTIES_BYTES: Final = MAX_PROPERTIES_BYTES - _ADDED_PROPERTIES_BYTES
#: What is added to a message of a batch at most, by the broker and by OpenTelemetry.
_ADDED_IN_BATCH_BYTES: Final = 320
_BATCH_ROOM_BYTES: Final = _ADDED_IN_BATCH_BYTES - _ADDED_PROPERTIES_BYTES
_SHOWN_QUEUES: Final = 8
_SHORT_TAGS: Final = 256
#: Fixed part of a stored record with IPv6 addresses.
RECORD_BYTES: Final = 91 + 24


class NoSuchQueueError(MessageIllegalError):
    """A plan does not have the chosen queue: the route may be older than the queue."""


class Target:
    """A queue to send to, with the parts of the request header that are the same for all messages."""

    __slots__ = ("address", "fields", "queue")

    def __init__(self, group: str, queue: MessageQueue, address: str, namespace: Namespace) -> None:
        self.queue = queue
        self.address = address
        self.fields = {
            "a": namespace.wrap(group),
            "b": namespace.wrap(queue.topic),
            "c": AUTO_CREATE_TOPIC,
            "d": str(DEFAULT_TOPIC_QUEUES),
            "e": str(queue.queue_id),
            "f": "0",
            "h": "0",
            "j": "0",
            "k": "false",
            "m": "false",
            "n": queue.broker_name,
        }


class TopicPlan:
    """The targets of a topic, made from one state of its route.

    Attributes:
        route: the known route it was made from, that of its template while the topic waits for its first message.
        queues: all queues, sorted.
        masters: name and address of the brokers that can be sent to; others of an order topic are away.
    """

    __slots__ = ("_next", "_targets", "_targets_by_queue", "masters", "queues", "route")

    def __init__(
        self, group: str, topic: str, known: TopicRouteData | None, route: TopicRouteData, namespace: Namespace
    ) -> None:
        """Take the route to use, and the one that is known to the instance and that it was made from."""
        self.route = known
        masters = masters_of_route(route)
        self.queues: Queues = publish_queues(topic, route)
        reached = [queue for queue in self.queues if queue.broker_name in masters]
        targets = [Target(group, queue, masters[queue.broker_name], namespace) for queue in reached]
        self._targets = targets
        self._targets_by_queue = {target.queue: target for target in targets}
        self._next = count(RANDOM.randrange(2**16)).__next__  # producers start at different queues
        self.masters = {target.queue.broker_name: target.address for target in targets}

    def choose(self) -> Target:
        """Return the next target in turn."""
        targets = self._targets
        return targets[self._next() % len(targets)]

    def choose_among(self, broker_names: Container[str]) -> Target:
        """Return the next target in turn that is on one of these brokers; any if none is."""
        for _ in self._targets:
            target = self.choose()
            if target.queue.broker_name in broker_names:
                return target
        return self.choose()

    def find(self, queue: MessageQueue) -> Target:
        """Return the target of a queue.

        Raises:
            NoSuchQueueError: the topic has no such queue, or it must not be written.
            NoRouteError: its broker is away.
        """
        target = self._targets_by_queue.get(queue)
        if target is None:
            if queue in self.queues:
                raise NoRouteError(f"queue {queue}: its broker has no master now")
            shown = ", ".join(map(str, self.queues[:_SHOWN_QUEUES]))
            more = len(self.queues) - _SHOWN_QUEUES
            rest = f" and {more} more" if more > 0 else ""
            raise NoSuchQueueError(f"queue {queue} cannot be sent to; those that can: {shown}{rest}")
        return target


class Outgoing:
    """A message, or a batch, ready to be sent to any of its targets, more than once if need be."""

    __slots__ = ("_body", "_code", "_fields", "message_id")

    def __init__(self, code: int, body: bytes, message_id: str, fields: dict[str, str]) -> None:
        """Take the fields of the header that the targets do not have."""
        self._code = code
        self._body = body
        self._fields = fields
        self.message_id = message_id

    def add_properties(self, added: Mapping[str, str]) -> int:
        """Add properties to each message, as far as there is room, in place of older ones; return how many there are.

        Readers take the last of properties of one name.
        """
        if not self.is_batch:
            encoded = self._fields["i"]
            self._fields["i"] = encoded + _suffix(added, MAX_SENT_PROPERTIES_BYTES - len(encoded.encode()))
            return 1
        suffix = _suffix(added, _BATCH_ROOM_BYTES).encode()
        entries = decode_batch(self._body)
        self._body = encode_batch((flag, body, properties + suffix) for flag, body, properties in entries)
        return len(entries)

    @property
    def is_batch(self) -> bool:
        """Whether it may have several messages."""
        return self._code == _SEND_BATCH

    @property
    def properties(self) -> str:
        """Encoded properties of a single message."""
        return self._fields["i"]

    def contents(self) -> Iterator[tuple[str, int, dict[str, str]]]:
        """Yield id, length of the body and properties of each message."""
        if not self.is_batch:
            yield self.message_id, len(self._body), decode_properties(self._fields["i"].encode())
            return
        for message_id, entry in zip(self.message_id.split(","), decode_batch(self._body), strict=False):
            yield message_id, len(entry.body), decode_properties(entry.properties)

    def frame(
        self, target: Target, opaque: int, header_format: int, credentials: Credentials | None, flag: int = 0
    ) -> tuple[bytes, bytes]:
        """Return the frame, and a body to be sent right after it (empty if it is in the frame)."""
        fields = target.fields | self._fields
        body = self._body
        if credentials is not None:
            fields = credentials.sign(fields, body)
        header = ENCODERS[header_format](self._code, _PYTHON, VERSION, opaque, flag, None, fields)
        if len(body) <= _COPY_LIMIT_BYTES:
            return build_frame(header_format, header, body), b""
        return frame_prefix(header_format, header, len(body)), body


def message_request(message: Message, message_id: str, properties: str, packed: bytes | None = None) -> Outgoing:
    """Return the request of one message; ``packed`` is its compressed body."""
    fields = {"g": _now(), "i": properties}
    if message.flag:
        fields["h"] = str(message.flag)
    body = message.body
    if packed is not None and len(packed) < len(body):
        body = packed
        fields["f"] = _ZLIB
    return Outgoing(_SEND, body, message_id, fields)


def reply_request(body: bytes, message_id: str, properties: dict[str, str]) -> Outgoing:
    """Return the request of a reply with these properties of the request that it answers."""
    own = {
        PropertyName.MESSAGE_TYPE: "reply",
        PropertyName.UNIQUE_KEY: message_id,
        PropertyName.WAIT_STORE_MSG_OK: "true",
    }
    return Outgoing(_REPLY, body, message_id, {"g": _now(), "i": encode_properties(own | properties).decode()})


def batch_request(body: bytes, message_ids: str, *, wait_store_ok: bool) -> Outgoing:
    """Return the request of an encoded batch, with the ids of its messages joined by commas."""
    wait = "true" if wait_store_ok else "false"
    return Outgoing(_SEND_BATCH, body, message_ids, {"g": _now(), "i": f"WAIT\x01{wait}", "m": "true"})


def _suffix(added: Mapping[str, str], room: int) -> str:
    """Return properties to append to encoded ones, those that fit."""
    suffix = ""
    for name, value in added.items():
        longer = f"{suffix}\x02{name}\x01{value}"
        if value.isprintable() and len(longer.encode()) <= room:  # the separators are not printable
            suffix = longer
    return suffix


def _now() -> str:
    return str(wall_clock_ms())


def check_topic(topic: str) -> None:
    """Accept a topic that clients may send to.

    Raises:
        IllegalNameError: the name breaks RocketMQ's rules, or is a topic of the broker's own.
    """
    validate_topic(topic)
    if topic in FORBIDDEN_TOPICS:
        raise IllegalNameError(f"topic {topic}: brokers write it themselves; clients may not send to it")


def check_batch(messages: Sequence[Message]) -> str:
    """Return the topic of messages that may be a batch together.

    Raises:
        MessageIllegalError: they may not; the text says why.
    """
    if not messages:
        raise MessageIllegalError("batch: there is no message in it")
    topic = messages[0].topic
    if topic.startswith(RETRY_PREFIX):
        raise MessageIllegalError("batch: retry topics take single messages only")
    wait = messages[0].wait_store_ok
    for message in messages:
        if message.topic != topic or message.wait_store_ok != wait:
            raise MessageIllegalError("batch: all messages must have the same topic and the same wait_store_ok")
        if message.is_delayed:
            raise MessageIllegalError("batch: delayed messages must be sent one by one")
    return topic


def encode_message_properties(message: Message, unique_id: str) -> str:
    """Return the properties of a message as they are sent.

    Raises:
        MessageIllegalError: together they are too long.
        ProtocolError: a name or value holds a separator.
    """
    if not (message.properties or message.keys or message.is_delayed or message.sharding_key):
        # What most messages are; 0.5 us instead of 2.5.
        wait = "true" if message.wait_store_ok else "false"
        tags = message.tags
        if not tags:
            return f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01{wait}"
        if len(tags) < _SHORT_TAGS and tags.isprintable():  # the separators are not printable
            return f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01{wait}\x02TAGS\x01{tags}"
    properties = message.all_properties()
    properties[PropertyName.UNIQUE_KEY] = unique_id
    encoded = encode_properties(properties)
    if len(encoded) > MAX_SENT_PROPERTIES_BYTES:
        raise MessageIllegalError(
            f"properties of {len(encoded)} bytes: at most {MAX_SENT_PROPERTIES_BYTES} are allowed, which "
            f"become up to {MAX_PROPERTIES_BYTES} with what the broker adds"
        )
    return encoded.decode()


class Batch(NamedTuple):
    """Messages that a broker takes in one request.

    Attributes:
        end: how many messages of the call are in this batch and those before it.
        message_ids: joined by commas.
        body: all of them, encoded.
    """

    end: int
    message_ids: str
    body: bytes


def split_batch(messages: Sequence[Message], next_id: Callable[[], str], max_bytes: int) -> Iterator[Batch]:
    """Yield batches in order, each as large as a broker takes it; they are made when they are asked for.

    A broker counts the records it would store, so each message counts with its record's fixed part and its topic.

    Raises:
        MessageIllegalError, ProtocolError: properties that cannot be sent.
    """
    entries: list[tuple[int, bytes, bytes]] = []
    ids: list[str] = []
    total = 0
    for index, message in enumerate(messages):
        unique_id = next_id()
        properties = encode_message_properties(message, unique_id).encode()
        size = RECORD_BYTES + len(message.body) + len(message.topic) + len(properties) + _ADDED_IN_BATCH_BYTES
        if total + size > max_bytes and entries:
            yield Batch(index, ",".join(ids), encode_batch(entries))
            total = 0
            entries, ids = [], []
        total += size
        entries.append((message.flag, message.body, properties))
        ids.append(unique_id)
    yield Batch(len(messages), ",".join(ids), encode_batch(entries))
