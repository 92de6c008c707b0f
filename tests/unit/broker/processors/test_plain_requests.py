"""Plain requests, recognised quickly, against full reading: equal records, answers and refusals."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.commands import make_command
from tests.unit.broker.recording import MakeBroker, Peer, set_disk_full
from triomq.broker.processors.plain_requests import PlainRequests
from triomq.broker.server import Broker
from triomq.protocol.bodies.route import TopicConfig, TopicFilterType
from triomq.protocol.codes import RequestCode, ResponseCode, SerializeType
from triomq.protocol.errors import ProtocolError
from triomq.protocol.names import HALF_TOPIC, OP_HALF_TOPIC
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.record import decode_record, decode_records
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.config import Durability

PLAIN: Final = {
    "a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0",
    "i": "UNIQ_KEY\x01C0A8\x02WAIT\x01true\x02TAGS\x01TagA", "j": "0", "k": "false", "m": "false", "n": "broker-a",
}  # fmt: skip
TOPIC: Final = TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4)

ODD_VALUES: Final = st.sampled_from(
    ["", "0", "1", "3", "4", "7", "-1", "+1", "01", " 1", "1_0", "8", "12", "769", "99999999999", "true", "TRUE", "T",
     "%RETRY%G", "SELF_TEST_TOPIC", "unknown", "17000000000_0", "1699999999999", "DELAY\x011", "DELAY\x010",
     "TRAN_MSG\x01true", "TIMER_DELIVER_MS\x011", "WAIT\x01false", "TAGS\x01\u00e9\x02", "MYWAIT\x01true\x02a\x01b",
     "TAGS\x01A\x02TAGS\x01B", "\x02\x02", "KEYS\x01k", "\ud800"]
)  # fmt: skip
HALF: Final = {**PLAIN, "f": "4", "i": "TRAN_MSG\x01true\x02UNIQ_KEY\x01C0A8\x02WAIT\x01true\x02PGROUP\x01P"}
CHANGES: Final = st.dictionaries(st.sampled_from([*PLAIN, "l"]), st.none() | ODD_VALUES, max_size=3)


@pytest.fixture
def broker(make_broker: MakeBroker) -> Broker:
    broker = make_broker({"commit_log_file_size_bytes": 16 * 1024**2})
    broker.topics.put(TOPIC)
    return broker


def request(fields: Mapping[str, str], body: bytes = b"body", *, opaque: int = 77, **rest: Any) -> RemotingCommand:
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, opaque, ext_fields=dict(fields), body=body, **rest)


def quickly(peer: Peer, *requests: RemotingCommand) -> tuple[list[RemotingCommand], RemotingCommand | None]:
    """Return the answers, and the first request that is not a plain one."""
    peer.sent.clear()
    left = next(peer.broker.pipeline.commands(peer.as_connection, iter([each.encode()[4:] for each in requests])), None)
    return peer.sent, left


def plain_requests(broker: Broker) -> PlainRequests:
    assert broker.pipeline.plain_requests is not None
    return broker.pipeline.plain_requests


def fully(peer: Peer, command: RemotingCommand) -> RemotingCommand:
    peer.sent.clear()
    peer.serve(command)
    (response,) = peer.sent
    return response


def outcome(peer: Peer, response: RemotingCommand) -> Any:
    """Return the answer and the stored record, without offsets."""
    if response.code:
        return response.code, response.remark
    answered = dict(response.ext_fields)
    record = stored(peer, answered.pop("msgId"))
    answered.pop("queueOffset")
    (unit,) = peer.broker.store.reader.queue_units(record.topic, record.queue_id, record.queue_offset, 1)
    assert (unit.physical_offset, unit.size) == (record.physical_offset, record.store_size)
    return (
        unit.tags_code,
        response.code, response.flag, response.opaque, response.language, response.version, answered,
        record.topic, record.queue_id, record.flag, record.sys_flag, record.born_timestamp, record.born_host,
        record.store_host, record.reconsume_times, record.encoded_properties, record.stored_body, record.body_crc,
    )  # fmt: skip


def stored(peer: Peer, message_id: str) -> MessageExt:
    view = peer.broker.store.commit_log.look_message(int(message_id[16:], 16))
    assert view is not None
    return decode_record(view)


def is_plain(peer: Peer, fields: Mapping[str, str], **rest: Any) -> bool:
    return quickly(peer, request(fields, **rest))[1] is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(usual=st.sampled_from([PLAIN, HALF]), changes=CHANGES, body=st.binary(max_size=40))
def test_quick_and_full_reading_store_and_answer_alike(
    broker: Broker, usual: dict[str, str], changes: dict[str, str | None], body: bytes
) -> None:
    fields = {name: value for name, value in {**usual, **changes}.items() if value is not None}
    peer = Peer(broker)
    if not broker.transactions.undecided.halves.next_offset:
        fully(peer, request(HALF))  # makes the topics
    try:
        command = request(fields, body)
        answers, left = quickly(peer, command)
    except ProtocolError:  # text that no frame can hold
        return
    if left is None:
        (response,) = answers
        assert outcome(peer, response) == outcome(peer, fully(peer, command))
    else:
        assert not answers
        assert vars_of(left) == vars_of(command)


def decision(half: RemotingCommand, bits: int, **changes: str) -> RemotingCommand:
    """Return a decision about a half message, as Java's producers send it."""
    fields = {
        "producerGroup": "P", "commitLogOffset": str(int(half.ext_fields["msgId"][16:], 16)), "msgId": "C0A8",
        "tranStateTableOffset": half.ext_fields["queueOffset"], "commitOrRollback": str(bits),
    }  # fmt: skip
    return make_command(RequestCode.END_TRANSACTION, 5, 2, {**fields, **changes})


def appended(broker: Broker, begin: int) -> list[tuple[object, ...]]:
    """Return the records from an offset on, without offsets and times."""
    log = broker.store.commit_log
    records = decode_records(bytes(log.view(begin, log.max_offset - begin) or b""))
    return [
        (each.topic, each.queue_id, each.sys_flag, each.stored_body if each.topic != OP_HALF_TOPIC else b"", each.flag,
         each.encoded_properties, each.born_host, each.store_host, each.reconsume_times)
        for each in records
    ]  # fmt: skip


@pytest.mark.parametrize("bits", [0, 4, 8, 12])
@pytest.mark.parametrize(
    "changes",
    [{}, {"producerGroup": "Q"}, {"tranStateTableOffset": "7"}, {"commitLogOffset": "x"}, {"commitLogOffset": "3"}],
    ids=["right", "other group", "other queue offset", "no number", "no record"],
)
def test_plain_decision_ends_like_full_one(peer: Peer, bits: int, changes: dict[str, str]) -> None:
    broker, found = peer.broker, []
    for is_short in (False, True):
        end = decision(fully(peer, request(HALF)), bits, **changes)
        begin, put = broker.store.commit_log.max_offset, broker.statistics.put_messages
        undecided = len(broker.transactions.undecided)
        if not is_short:
            peer.serve(end)
        elif quickly(peer, end) != ([], None):
            assert changes or bits not in {8, 12}
            peer.serve(end)
        decided = undecided - len(broker.transactions.undecided)
        found.append((appended(broker, begin), decided, broker.statistics.put_messages - put))
    assert found[0] == found[1]


def test_run_of_sends_and_decisions_keeps_order(peer: Peer) -> None:
    halves = [fully(peer, request(HALF, b"half %d" % number)) for number in range(3)]
    begin = peer.broker.store.commit_log.max_offset
    answers, left = quickly(
        peer,
        decision(halves[0], 8),
        request(PLAIN, b"sent", opaque=1),
        request(HALF, b"another half", opaque=2),
        decision(halves[1], 12),
        decision(halves[2], 8),
        decision(halves[2], 8),  # again: this one finds it settled
    )
    assert left is not None
    assert [answer.opaque for answer in answers] == [1, 2]
    assert [(record[0], record[3]) for record in appended(peer.broker, begin)] == [
        ("T", b"half 0"), (OP_HALF_TOPIC, b""), ("T", b"sent"), (HALF_TOPIC, b"another half"),
        (OP_HALF_TOPIC, b""), ("T", b"half 2"), (OP_HALF_TOPIC, b""),
    ]  # fmt: skip
    assert len(peer.broker.transactions.undecided) == 1


def test_full_disk_leaves_plain_decision_undecided(peer: Peer) -> None:
    half = fully(peer, request(HALF))
    set_disk_full(peer.broker.store, is_full=True)
    peer.read(request(PLAIN), decision(half, 8))
    assert len(peer.broker.transactions.undecided) == 1
    set_disk_full(peer.broker.store, is_full=False)
    peer.read(decision(half, 8))
    assert len(peer.broker.transactions.undecided) == 0


def vars_of(command: RemotingCommand) -> list[object]:
    return [getattr(command, name) for name in RemotingCommand.__slots__]


def test_run_is_numbered_and_answered_in_order(peer: Peer) -> None:
    peer.broker.topics.put(TopicConfig(topic_name="U", read_queue_nums=1, write_queue_nums=1))
    targets = [("T", "1"), ("T", "2"), ("T", "1"), ("U", "0"), ("T", "1")]
    requests = [
        request({**PLAIN, "b": topic, "e": queue_id}, b"body %d" % opaque, opaque=opaque)
        for opaque, (topic, queue_id) in enumerate(targets)
    ]
    answers, left = quickly(peer, *requests)
    assert left is None
    assert [answer.opaque for answer in answers] == [0, 1, 2, 3, 4]
    assert [answer.ext_fields["queueOffset"] for answer in answers] == ["0", "0", "1", "0", "2"]
    records = [stored(peer, answer.ext_fields["msgId"]) for answer in answers]
    assert [(each.topic, str(each.queue_id)) for each in records] == targets
    assert [each.stored_body for each in records] == [b"body %d" % number for number in range(5)]
    assert peer.broker.statistics.put_by_topic == {"T": 4, "U": 1}
    assert (peer.broker.statistics.put_messages, peer.broker.statistics.put_bytes) == (5, 30)


def test_frames_before_bad_one_are_stored(peer: Peer) -> None:
    frames = [request(PLAIN).encode()[4:], b"\x00\x00\x00\x05{bad}"]
    with pytest.raises(ProtocolError):
        next(peer.broker.pipeline.commands(peer.as_connection, iter(frames)), None)
    assert [answer.code for answer in peer.sent] == [0]


@pytest.mark.parametrize(
    "frame",
    [
        b"\x00\x00\x00\x02[]",
        b"\x00\x00\x00\x04null",
        b"\x00\x00\x00\x03",
        b"\x00\x00\x01\x00{}",
        b"\x00\xff\xff\xff" + bytes(0xFFFFFF),
        b"\x07\x00\x00\x02{}",
        b'\x00\x00\x00\x0c{"code":"x"}',
    ],
    ids=["list", "null", "short", "beyond the frame", "header too long", "unknown serialisation", "code no number"],
)
def test_unreadable_frame_is_protocol_error(peer: Peer, frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        next(peer.broker.pipeline.commands(peer.as_connection, iter([frame])), None)


@pytest.mark.parametrize(
    ("rest", "plain"),
    [
        ({"body": b"x" * 16 * 1024}, True),
        ({"body": b"x" * (16 * 1024 + 1)}, False),
        ({"flag": 2}, False),
        ({"opaque": -1}, False),
        ({"serialize_type": int(SerializeType.ROCKETMQ)}, False),
        ({"serialize_type": int(SerializeType.MSGPACK)}, False),
    ],
)
def test_unusual_sends_are_read_fully(peer: Peer, rest: dict[str, Any], plain: bool) -> None:
    assert is_plain(peer, PLAIN, **rest) == plain


def test_size_limit_applies_to_each_message(make_broker: MakeBroker) -> None:
    broker = make_broker({"max_message_size_bytes": 100})
    broker.topics.put(TOPIC)
    peer = Peer(broker)
    requests = [request(PLAIN, bytes(size), opaque=size) for size in (100, 101, 99)]
    answers, left = quickly(peer, *requests)
    assert left is None
    assert [(answer.opaque, answer.code) for answer in answers] == [
        (100, ResponseCode.SUCCESS), (101, ResponseCode.MESSAGE_ILLEGAL), (99, ResponseCode.SUCCESS)
    ]  # fmt: skip


@pytest.mark.parametrize("region", ["DefaultRegion", '100% "ours"'])
def test_answer_equals_that_of_general_writer(make_broker: MakeBroker, region: str) -> None:
    header = plain_requests(make_broker(region=region))._template % (b"0A4D000100002A9F", 0x400, 3, 12, -5)
    fields = {"MSG_REGION": region, "TRACE_ON": "true", "msgId": "0A4D000100002A9F0000000000000400"}
    general = RemotingCommand(0, -5, 1, {**fields, "queueId": "3", "queueOffset": "12"}).encode()
    assert header == general[8:]


async def test_sync_durability_run_is_answered_after_flush(make_broker: MakeBroker) -> None:
    peer = Peer(make_broker({"durability": Durability.SYNC}))
    peer.broker.topics.put(TOPIC)
    assert peer.broker.group_commit is not None
    assert quickly(peer, request(PLAIN)) == ([], None)  # makes the files
    assert peer.broker.group_commit.waiting == 1
    assert quickly(peer, request(PLAIN), request(PLAIN)) == ([], None)
    assert peer.broker.group_commit.waiting == 2
    assert peer.broker.statistics.put_messages == 3


@pytest.mark.parametrize("durability", Durability)
def test_send_opting_out_of_flush_is_answered_immediately(make_broker: MakeBroker, durability: Durability) -> None:
    peer = Peer(make_broker({"durability": durability}))
    peer.broker.topics.put(TOPIC)
    fields = {**PLAIN, "i": "UNIQ_KEY\x01C0A8\x02WAIT\x01false"}
    assert is_plain(peer, fields) == (durability is Durability.ASYNC)
    assert fully(peer, request(fields)).code == ResponseCode.SUCCESS


def test_changed_topic_holds_for_next_message(peer: Peer) -> None:
    fields = {**PLAIN, "e": "3"}
    assert is_plain(peer, fields)
    peer.broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2))
    assert not is_plain(peer, fields)
    refused = fully(peer, request(fields))
    assert (refused.code, refused.remark) == (ResponseCode.SYSTEM_ERROR, "request queueId[3] is illegal")
    peer.broker.topics.put(replace(TOPIC, topic_filter_type=TopicFilterType.MULTI_TAG))
    assert not is_plain(peer, fields)


def test_cache_does_not_grow_with_peer_input(peer: Peer) -> None:
    sends = plain_requests(peer.broker)
    for queue_id in ("0", "00", "000", "٣", "1", "-1", "4", "99999999", "x", ""):
        sends._find("T", queue_id)
        sends._find(f"unknown{queue_id}", "0")
    assert set(sends._queues) == {("T", "0"), ("T", "1")}
