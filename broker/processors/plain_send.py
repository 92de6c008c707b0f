"""SEND_MESSAGE_V2 (310) as nearly every producer sends it nearly always: the hottest path of all.

A plain send is one message for a known queue of a known topic, neither delayed nor part of a transaction nor a retry,
with its header in JSON, whose sender waits for the disk if the durability is sync.  Everything else takes the long way
in ``send.py``; so does whatever looks unusual here.  Both ways store and answer the same bytes, which a test holds
together.

Plain sends that one read brought behind one another are stored as one run and answered with one buffer.  None of the
typed header, the look-up of the topic, the response object and the append of each message by itself is needed then;
together they take more than half of the time of the long way.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import orjson

from triomq.protocol.codes import TRANSACTION_MASK, VERSION, RequestCode, SerializeType
from triomq.protocol.errors import MessageIllegalError, StoreError
from triomq.protocol.record.layout import CRC_MASK
from triomq.protocol.record.properties import append_property, remove_property
from triomq.protocol.record.record import tags_code_of
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import MAX_HEADER_BYTES, PREFIX

if TYPE_CHECKING:
    from triomq.broker.network.connection import Connection
    from triomq.broker.server import Broker
    from triomq.storage.append import Entry

_JSON: Final = int(SerializeType.JSON)
_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_SMALL: Final = {str(number): number for number in range(1024)}  # flags are small, and their texts come again
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


def response_template(region: str) -> bytes:
    """Return the header of the answer, to be filled with store host, physical offset, queue id, queue offset, opaque.

    The first two are the offset message id: the host as upper case hex digits, the offset as a number.
    """
    named = orjson.dumps(region).replace(b"%", b"%%")
    fields = b'"MSG_REGION":%s,"TRACE_ON":"true","msgId":"%%b%%016X","queueId":"%%d","queueOffset":"%%d"' % named
    return b'{"code":0,"extFields":{%s},"flag":1,"language":"PYTHON","opaque":%%d,"version":%d}' % (fields, VERSION)


class PlainSends:
    """Knows plain sends when it sees them, and what the store keeps of them."""

    __slots__ = ("_born", "_born_text", "_broker", "_cluster", "_find", "_group_commit")

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._group_commit = broker.group_commit
        self._find = broker.send_targets.find
        self._cluster = append_property(b"x", b"CLUSTER", broker.cluster_name)[1:]
        self._born_text = ""  # the newest time that was read: many messages are born in the same millisecond
        self._born = 0

    def serve(self, connection: "Connection", frames: Iterator[bytes]) -> RemotingCommand | None:
        """Serve frames up to the first that is no plain send, and return that one; ``None`` when all are served.

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
                    return RemotingCommand.decode(frame)  # it says what is wrong
                body = frame[body_at:]
                entry = self._entry(connection, fields, body) if code == _SEND else None
                if entry is None:
                    return RemotingCommand.from_json(fields, body)
                run.append(entry)
                requests.append(fields)
        finally:
            if run:
                self._store(connection, run, requests)
        return None

    def _entry(self, connection: "Connection", fields: dict[str, Any], body: bytes) -> "Entry | None":
        """Return what the store keeps of a plain send, ``None`` for any other request."""
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
        except (KeyError, TypeError, AttributeError, UnicodeEncodeError):  # not all there, or not all text
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

    def _store(self, connection: "Connection", run: "list[Entry]", requests: list[dict[str, Any]]) -> None:
        broker = self._broker
        try:
            places = broker.store.append(run)
        except (MessageIllegalError, StoreError):  # one by one: each is answered with what happens to it
            for entry, fields in zip(run, requests, strict=True):
                connection.serve(RemotingCommand.from_json(fields, entry[1]))
            return
        template = broker.send_response
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
        broker.statistics.put_run(counts, size_bytes)
