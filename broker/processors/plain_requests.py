"""The most common requests of producers, recognised quickly: the hottest path of the broker.

A plain send (SEND_MESSAGE_V2, 310) is one message for a known queue of a known topic, not delayed and no retry, with a
JSON header, whose sender waits for the disk if the durability is sync.  It may be a half message.  A plain decision
(END_TRANSACTION, 37) ends an undecided transaction whose half message was stored recently, and wants no answer.

Everything else is read fully by the processor of its code.  Both ways make the same entry and the same answer; a test
compares them.  A plain request costs less than half: it needs no typed header, no check of the topic and no response
object, and one append stores the plain requests of one read.
"""

from collections import defaultdict
from collections.abc import Iterator
from time import perf_counter
from typing import Any, Final, NamedTuple, Protocol
from zlib import crc32

import orjson

from triomq.broker.access import Access
from triomq.broker.delayed.delivery import REAL_QUEUE_ID, REAL_TOPIC
from triomq.broker.network.connection import Connection
from triomq.broker.processors.send import SendProcessor, response_fields
from triomq.broker.transactions.undecided import Decision
from triomq.protocol.acl.accounts import PUB
from triomq.protocol.bodies.route import TopicFilterType
from triomq.protocol.codes import TRANSACTION_MASK, CommandFlag, MessageSysFlag, RequestCode
from triomq.protocol.errors import MessageIllegalError, StoreError, TriomqError
from triomq.protocol.names import FORBIDDEN_TOPICS, HALF_TOPIC, RETRY_PREFIX
from triomq.protocol.record.layout import CRC_MASK
from triomq.protocol.record.properties import PropertyName, append_property, get_property, remove_property
from triomq.protocol.record.record import tags_code_of
from triomq.protocol.requests.messages import SendMessageRequestHeaderV2
from triomq.protocol.wire.command import RemotingCommand, json_template
from triomq.protocol.wire.frame import MAX_HEADER_BYTES, PREFIX, Frame
from triomq.storage.append import Entry
from triomq.storage.consume_queue.consume_queue import ConsumeQueue

_ONEWAY: Final = int(CommandFlag.ONEWAY)
_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_END_TRANSACTION: Final = int(RequestCode.END_TRANSACTION)
_COMMIT: Final = int(MessageSysFlag.TRANSACTION_COMMIT)
_DECISIONS: Final = {str(int(bits)): int(bits) for bits in (_COMMIT, MessageSysFlag.TRANSACTION_ROLLBACK)}
_SMALL: Final = {str(number): number for number in range(1024)}  # flags are small, so their texts are few
_MAX_DIGITS: Final = 5  # of a queue id: topics have at most 65,536 queues
_TIMESTAMP_DIGITS: Final = 13  # ms, until the year 2286
_MAX_OPAQUE: Final = 2**31 - 1
_HEADER_AT: Final = 4
_JOINED_BODY_LIMIT: Final = 16 * 1024  # a longer body is not worth another copy
_UNIQUE_ID: Final = b"UNIQ_KEY\x01"
_SEPARATOR: Final = b"\x02"
_WAIT_AT_END: Final = b"\x02WAIT\x01true"
_WAITS_NOT: Final = b"WAIT\x01false"
_GROUP: Final = PropertyName.PRODUCER_GROUP.encode()
_pack_prefix = PREFIX.pack
_loads = orjson.loads
_new = tuple.__new__


class _Checks(Protocol):
    """Decides whether plain requests of a broker with accounts or quotas pass; see ``broker/pipeline.py``."""

    @property
    def access(self) -> Access: ...

    def account_of(self, connection: Connection, fields: dict[str, Any], body: bytes) -> str | None: ...

    def counts(self, connection: Connection, entry: Entry) -> bool: ...


class _Run(NamedTuple):
    """Entries to store with one append: the request of each, ``None`` for those of decisions; decisions with requests.

    A decision is named by the last half message.
    """

    entries: list[Entry]
    requests: list[dict[str, Any] | None]
    decisions: dict[int, tuple[Decision, dict[str, Any]]]


class PlainRequests:
    """Recognises plain requests, stores and answers them.

    Queues are found by the texts of topic and queue id in the request, without further checks; they are remembered
    until any topic changes.
    """

    def __init__(self, sends: SendProcessor) -> None:
        config = sends.config
        self._sends = sends
        self._store = sends.store
        self._topics = sends.topics
        self._undecided = sends.undecided
        self._statistics = sends.statistics
        self._group_commit = sends.group_commit
        self._cluster = append_property(b"x", b"CLUSTER", config.cluster_name.encode())[1:]
        # Filled with store host and physical offset (the offset message id), queue id, queue offset and opaque.
        self._template = json_template(response_fields(config.region.replace("%", "%%"), "%b%016X", "%d", "%d"))
        self._born_text = ""  # the time read last: many messages are born in the same millisecond
        self._born = 0
        self._queues: dict[tuple[str, str], ConsumeQueue] = {}  # by topic and queue id
        self._version = sends.topics.data_version

    def serve(self, connection: Connection, frames: Iterator[Frame], checks: _Checks | None) -> RemotingCommand | None:
        """Serve frames up to the first that is no plain request, and return that one; ``None`` when all are served.

        Requests that do not pass the ``checks`` are no plain ones: serving them by their code reports why.

        Raises:
            ProtocolError: a frame cannot be read; those before it are stored and answered.
        """
        began = perf_counter()
        together = _Run([], [], {})
        run, requests, decisions = together
        try:
            for frame in frames:
                # The type of the header is the first byte: formats other than JSON are beyond the limit.
                body_at = _HEADER_AT + int.from_bytes(frame[:_HEADER_AT])
                if body_at > len(frame) or body_at > MAX_HEADER_BYTES or isinstance(frame, memoryview):  # a long one
                    return RemotingCommand.decode(frame)
                try:
                    fields = _loads(frame[_HEADER_AT:body_at])
                    code = fields.get("code")
                except (ValueError, AttributeError):
                    return RemotingCommand.decode(frame)  # it reports the error
                body = frame[body_at:]
                if code == _SEND and (checks is None or checks.account_of(connection, fields, body) is not None):
                    send = self._entry(connection, fields, body)
                    if send is not None and (checks is None or checks.counts(connection, send)):
                        run.append(send)
                        requests.append(fields)
                        continue
                elif code == _END_TRANSACTION:
                    decision = self._decision(connection, fields, body, checks)
                    if decision is not None and decision.live not in decisions:
                        entries = self._undecided.entries(decision)
                        run += entries
                        requests += [None] * len(entries)
                        decisions[decision.live] = decision, fields
                        continue
                return RemotingCommand.from_json(fields, body)
        finally:
            if run:
                self._store_run(connection, together)
                if self._group_commit is None:
                    self._statistics.sends.observe(perf_counter() - began)
        return None

    def _find(self, topic: str, queue_id: str) -> ConsumeQueue | None:
        """Return the queue, or ``None`` if the send may not be a plain one."""
        if self._version is not self._topics.data_version:  # a new object for each change
            self._version = self._topics.data_version
            self._queues.clear()
        known = self._queues.get((topic, queue_id))
        if known is not None:
            return known
        config = self._topics.get(topic)
        if (
            config is None
            or topic in FORBIDDEN_TOPICS
            or topic.startswith(RETRY_PREFIX)
            or config.topic_filter_type is TopicFilterType.MULTI_TAG
            or not queue_id.isdecimal()
            or len(queue_id) > _MAX_DIGITS
            or str(int(queue_id)) != queue_id  # one text per queue, so that the cache is bounded
            or int(queue_id) >= max(config.write_queue_nums, config.read_queue_nums)
        ):
            return None
        queue = self._store.queue(topic, int(queue_id))
        self._queues[topic, queue_id] = queue
        return queue

    def _entry(self, connection: Connection, fields: dict[str, Any], body: bytes) -> Entry | None:
        """Return the entry of a plain send, ``None`` for any other request."""
        try:
            ext_fields = fields["extFields"]
            queue = self._find(ext_fields["b"], ext_fields["e"])
            sys_flag, flag, _topic_queues = _SMALL[ext_fields["f"]], _SMALL[ext_fields["h"]], _SMALL[ext_fields["d"]]
            properties = ext_fields["i"].encode()
            opaque = fields["opaque"]
            born_text = ext_fields["g"]
            if born_text != self._born_text:
                if len(born_text) != _TIMESTAMP_DIGITS or not born_text.isdecimal():
                    return None
                self._born = int(born_text)
                self._born_text = born_text
            if (
                queue is None
                or fields["flag"] != 0
                or opaque.__class__ is not int
                or not 0 <= opaque <= _MAX_OPAQUE
                or ext_fields.get("m", "false") != "false"
                or ext_fields.get("j", "0") != "0"
                or "a" not in ext_fields
                or "c" not in ext_fields
                or "l" in ext_fields
                or len(body) > _JOINED_BODY_LIMIT
            ):
                return None
        except (KeyError, TypeError, AttributeError, UnicodeEncodeError):  # something is missing or is not text
            return None
        if sys_flag & TRANSACTION_MASK:
            return self._half_entry(connection, ext_fields, queue, body)
        properties = properties.removesuffix(_WAIT_AT_END)
        tags_code = 0
        if _SEPARATOR in properties or properties[: len(_UNIQUE_ID)] != _UNIQUE_ID:  # more than the unique id
            if b"DEL" in properties or b"TRAN_MSG\x01" in properties:  # DELAY, TIMER_DELAY_..., TIMER_DELIVER_MS
                return None
            if self._group_commit is not None and _WAITS_NOT in properties:
                return None
            properties = remove_property(properties, b"WAIT")
            tags_code = tags_code_of(properties)
        cluster = self._cluster
        if not properties or properties[-1:] == _SEPARATOR:
            cluster = cluster[1:]
        return _new(
            Entry,
            (
                queue,
                body,
                properties + cluster,
                tags_code,
                flag,
                sys_flag,
                self._born,
                connection.peer_host,
                connection.store_host,
                0,
                0,
                crc32(body) & CRC_MASK,
            ),
        )

    def _half_entry(
        self, connection: Connection, ext_fields: dict[str, str], queue: ConsumeQueue, body: bytes
    ) -> Entry | None:
        """Return the entry of a plain half message, ``None`` for any other request."""
        halves = self._undecided.halves
        if not halves.next_offset:  # the first one makes the topics
            return None
        try:
            header = SendMessageRequestHeaderV2.decode(ext_fields)
            message, delay, wants_flush = self._sends.prepare(connection, header, queue, body, 0)
        except (TriomqError, TypeError, AttributeError):  # its processor reports the error
            return None
        if not delay.is_half or (self._group_commit is not None and not wants_flush):
            return None
        return message._replace(queue=halves)

    def _decision(
        self, connection: Connection, fields: dict[str, Any], body: bytes, checks: _Checks | None
    ) -> Decision | None:
        """Return a plain decision, ``None`` for any other request."""
        account = "" if checks is None else checks.account_of(connection, fields, body)
        if account is None:
            return None
        try:
            ext_fields = fields["extFields"]
            bits = _DECISIONS[ext_fields["commitOrRollback"]]
            half = self._store.reader.recent_message(int(ext_fields["commitLogOffset"]))
            if (
                half is None
                or fields["flag"] != _ONEWAY
                or half.topic != HALF_TOPIC
                or str(half.queue_offset) != ext_fields["tranStateTableOffset"]
                or get_property(half.encoded_properties, _GROUP) != ext_fields["producerGroup"].encode()
                or (live := self._undecided.find(half)) is None
            ):
                return None
        except (KeyError, TypeError, AttributeError, ValueError):  # something is missing or is not text
            return None
        topic, queue_id = (get_property(half.encoded_properties, name) or b"" for name in (REAL_TOPIC, REAL_QUEUE_ID))
        if account and checks is not None and not checks.access.may(account, topic.decode("utf-8", "replace"), PUB):
            return None
        if bits != _COMMIT:
            return Decision(half, live, bits, None)
        queue = self._find(topic.decode("utf-8", "replace"), queue_id.decode("utf-8", "replace"))
        return None if queue is None else Decision(half, live, bits, queue)

    def _store_run(self, connection: Connection, run: _Run) -> None:
        try:
            places = self._store.append(run.entries)
        except (MessageIllegalError, StoreError) as exc:
            self._store_singly(connection, run, exc)
            return
        template = self._template
        host = connection.message_id_host
        halves = self._undecided.halves
        sizes_bytes: defaultdict[str, list[int]] = defaultdict(list)
        answers: list[bytes] = []
        for stored, fields, (physical_offset, queue_offset) in zip(run.entries, run.requests, places, strict=True):
            if fields is None:
                continue
            queue = stored.queue
            queue_id = queue.queue_id
            if queue is halves:
                queue_id = int(fields["extFields"]["e"])
                self._undecided.added(queue_offset, stored.properties)
            header = template % (host, physical_offset, queue_id, queue_offset, fields["opaque"])
            header_length = len(header)
            answers += (_pack_prefix(_HEADER_AT + header_length, header_length), header)
            sizes_bytes[queue.topic].append(len(stored.body))
        for decision, _ in run.decisions.values():
            self._undecided.decided(decision)
        if self._group_commit is None:
            if answers:
                connection.send_frame(b"".join(answers))
        elif answers:
            self._group_commit.defer(connection, b"".join(answers))
        else:
            self._group_commit.wake()
        self._statistics.put_run(sizes_bytes)

    def _store_singly(self, connection: Connection, run: _Run, error: Exception) -> None:
        """Store and answer each request of a run that failed by itself; answer a single one with the error."""
        sent = [(each, fields) for each, fields in zip(run.entries, run.requests, strict=True) if fields is not None]
        if len(sent) + len(run.decisions) == 1:
            fields = sent[0][1] if sent else next(fields for _, fields in run.decisions.values())
            connection.refuse(RemotingCommand.from_json(fields, b""), error)
            return
        for each, fields in sent:
            self._store_run(connection, _Run([each], [fields], {}))
        for live, (decision, fields) in run.decisions.items():
            entries = self._undecided.entries(decision)
            self._store_run(connection, _Run(entries, [None] * len(entries), {live: (decision, fields)}))
