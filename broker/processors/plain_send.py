"""SEND_MESSAGE_V2 (310) as nearly every producer sends it nearly always: the hottest path of all.

A plain send is one message for a known queue of a known topic, neither delayed nor part of a transaction nor a retry,
with its header in JSON, and nobody waits for the disk.  Everything else takes the long way in ``send.py``; so does
whatever looks unusual here.  Both ways store and answer the same bytes, which a test holds together.

Nearly a third of the time of the long way goes into the typed header, the look-up of the topic and the response object;
none of them is needed here.
"""

from typing import TYPE_CHECKING, Final

import orjson

from triomq.broker.processors.send import send_message_v2
from triomq.protocol.codes import TRANSACTION_MASK, VERSION, SerializeType
from triomq.protocol.command import RemotingCommand
from triomq.protocol.frame import build_frame
from triomq.protocol.message_id import offset_message_id
from triomq.protocol.properties import append_property, remove_property
from triomq.protocol.record import tags_code_of

if TYPE_CHECKING:
    from triomq.broker.connection import Connection

_JSON: Final = int(SerializeType.JSON)
_SMALL: Final = {str(number): number for number in range(1024)}  # flags are small, and their texts come again
_TIMESTAMP_DIGITS: Final = 13  # ms, until the year 2286
_CLUSTER: Final = b"CLUSTER"
_WAIT: Final = b"WAIT"


def response_template(region: str) -> bytes:
    """Return the header of the answer, to be filled with message id, queue id, queue offset and opaque."""
    named = orjson.dumps(region).replace(b"%", b"%%")
    fields = b'"MSG_REGION":%s,"TRACE_ON":"true","msgId":"%%b","queueId":"%%b","queueOffset":"%%d"' % named
    return b'{"code":0,"extFields":{%s},"flag":1,"language":"PYTHON","opaque":%%d,"version":%d}' % (fields, VERSION)


def plain_send(connection: "Connection", command: RemotingCommand) -> RemotingCommand | None:
    """Store a plain message and answer; hand everything else to :func:`send_message_v2`."""
    ext_fields = command.ext_fields
    broker = connection.broker
    try:
        queue_id = ext_fields["e"]
        queue = broker.send_targets.find(ext_fields["b"], queue_id)
        sys_flag, flag, _topic_queues = _SMALL[ext_fields["f"]], _SMALL[ext_fields["h"]], _SMALL[ext_fields["d"]]
        born_timestamp = ext_fields["g"]
        properties = ext_fields["i"].encode()
    except (KeyError, UnicodeEncodeError):
        return send_message_v2(connection, command)
    if (
        queue is None
        or sys_flag & TRANSACTION_MASK
        or command.flag
        or command.serialize_type != _JSON
        or broker.group_commit is not None
        or ext_fields.get("m", "false") != "false"
        or ext_fields.get("j", "0") != "0"
        or "a" not in ext_fields
        or "c" not in ext_fields
        or "l" in ext_fields
        or len(born_timestamp) != _TIMESTAMP_DIGITS
        or not born_timestamp.isdecimal()
        or b"DELAY" in properties  # TIMER_DELAY_... too
        or b"TRAN_MSG\x01" in properties
        or b"TIMER_DELIVER" in properties
    ):
        return send_message_v2(connection, command)
    if b"WAIT\x01" in properties:
        properties = remove_property(properties, _WAIT)
    body = command.body
    store_host = connection.store_host
    physical_offset, queue_offset, _store_timestamp = broker.store.put(
        queue,
        body,
        append_property(properties, _CLUSTER, broker.cluster_name),
        tags_code_of(properties),
        flag,
        sys_flag,
        int(born_timestamp),
        connection.peer_host,
        store_host,
    )
    broker.statistics.put(queue.topic, 1, len(body))
    message_id = offset_message_id(store_host, physical_offset)
    header = broker.send_response % (message_id.encode(), queue_id.encode(), queue_offset, command.opaque)
    connection.send_frame(build_frame(_JSON, header))
    return None
