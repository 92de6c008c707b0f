"""SEND_MESSAGE_V2 (310) in its most common form: the hottest path of the broker.

A plain send is one message for a known queue of a known topic, neither delayed nor part of a transaction nor a retry,
with a JSON header, whose sender waits for the disk if the durability is sync.  Every other send is served by
``send.py``.  Both ways store and answer the same bytes, which a test verifies.

Consecutive plain sends of one read are stored with one append and answered with one buffer, without the typed header,
the check of the topic, the response object and the append per message, which together take more than half of the time.
"""

from collections.abc import Iterator
from typing import Any, Final
from zlib import crc32

import orjson

from triomq.broker.config import BrokerConfig
from triomq.broker.network.connection import Connection
from triomq.broker.network.responses import json_template
from triomq.broker.processors.send import response_fields
from triomq.broker.services.flush import GroupCommit
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.broker.topics import TopicTable
from triomq.protocol.bodies.route import TopicFilterType
from triomq.protocol.codes import TRANSACTION_MASK, RequestCode, SerializeType
from triomq.protocol.errors import MessageIllegalError, StoreError
from triomq.protocol.names import FORBIDDEN_TOPICS, RETRY_PREFIX
from triomq.protocol.record.layout import CRC_MASK
from triomq.protocol.record.properties import append_property, remove_property
from triomq.protocol.record.record import tags_code_of
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import MAX_HEADER_BYTES, PREFIX
from triomq.storage.append import Entry
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.message_store import MessageStore

_JSON: Final = int(SerializeType.JSON)
_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
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
_pack_prefix = PREFIX.pack
_loads = orjson.loads


class PlainSends:
    """Recognises plain sends, stores them and answers them.

    Queues are found by the texts of topic and queue id in the request, without further checks; they are remembered
    until any topic changes.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicTable,
        statistics: BrokerStatistics,
        group_commit: GroupCommit | None,
    ) -> None:
        self._store = store
        self._topics = topics
        self._statistics = statistics
        self._group_commit = group_commit
        self._cluster = append_property(b"x", b"CLUSTER", config.cluster_name.encode())[1:]
        # Filled with store host and physical offset (the offset message id), queue id, queue offset and opaque.
        self._template = json_template(response_fields(config.region.replace("%", "%%"), "%b%016X", "%d", "%d"))
        self._born_text = ""  # the time read last: many messages are born in the same millisecond
        self._born = 0
        self._queues: dict[tuple[str, str], ConsumeQueue] = {}  # by topic and queue id
        self._version = topics.data_version

    def serve(self, connection: Connection, frames: Iterator[bytes]) -> RemotingCommand | None:
        """Serve frames up to the first that is not a plain send, and return that one; ``None`` when all are served.

        Raises:
            ProtocolError: a frame cannot be read; those before it are stored and answered.
        """
        run: list[Entry] = []
        requests: list[dict[str, Any]] = []
        try:
            for frame in frames:
                body_at = _HEADER_AT + int.from_bytes(frame[1:_HEADER_AT])
                if frame[0] != _JSON or not body_at <= len(frame) or body_at > MAX_HEADER_BYTES:
                    return RemotingCommand.decode(frame)
                try:
                    fields = _loads(frame[_HEADER_AT:body_at])
                    code = fields.get("code")
                except (ValueError, AttributeError):
                    return RemotingCommand.decode(frame)  # it reports what is wrong
                body = frame[body_at:]
                entry = self._entry(connection, fields, body) if code == _SEND else None
                if entry is None:
                    return RemotingCommand.from_json(fields, body)
                run.append(entry)
                requests.append(fields)
        finally:
            if run:
                self._store_run(connection, run, requests)
        return None

    def _find(self, topic: str, queue_id: str) -> ConsumeQueue | None:
        """Return the queue, or ``None`` if the send may not be a plain one."""
        if self._version is not self._topics.data_version:  # a new object for each change
            self._version = self._topics.data_version
            self._queues.clear()
        return self._queues.get((topic, queue_id)) or self._remember(topic, queue_id)

    def _remember(self, topic: str, queue_id: str) -> ConsumeQueue | None:
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
                or sys_flag & TRANSACTION_MASK
                or fields.get("flag", 0) != 0
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
        return (
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
        )

    def _store_run(self, connection: Connection, run: list[Entry], requests: list[dict[str, Any]]) -> None:
        try:
            places = self._store.append(run)
        except (MessageIllegalError, StoreError):  # one by one: each gets its own answer
            for entry, fields in zip(run, requests, strict=True):
                connection.serve(RemotingCommand.from_json(fields, entry[1]))
            return
        template = self._template
        host = connection.message_id_host
        counts: dict[str, int] = {}
        size_bytes = 0
        answers: list[bytes] = []
        for entry, fields, (physical_offset, queue_offset) in zip(run, requests, places, strict=True):
            queue = entry[0]
            header = template % (host, physical_offset, queue.queue_id, queue_offset, fields["opaque"])
            header_length = len(header)
            answers += (_pack_prefix(_HEADER_AT + header_length, header_length), header)
            counts[queue.topic] = counts.get(queue.topic, 0) + 1
            size_bytes += len(entry[1])
        if self._group_commit is not None:
            self._group_commit.defer(connection, b"".join(answers))
        else:
            connection.send_frame(b"".join(answers))
        self._statistics.put_run(counts, size_bytes)
