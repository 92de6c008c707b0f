"""The short way of a plain send against the long way: the same record, the same answer, the same refusals."""

from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.broker.recording import MakeBroker, Peer
from triomq.broker.processors import plain_send as short
from triomq.broker.processors.send import send_message_v2
from triomq.broker.refusal import remark_of, response_code
from triomq.broker.server import Broker
from triomq.protocol.bodies import TopicConfig, TopicFilterType
from triomq.protocol.codes import ResponseCode, SerializeType
from triomq.protocol.command import RemotingCommand
from triomq.protocol.errors import TriomqError
from triomq.protocol.message import MessageExt
from triomq.protocol.record import decode_record

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
CHANGES: Final = st.dictionaries(st.sampled_from([*PLAIN, "l"]), st.none() | ODD_VALUES, max_size=3)


@pytest.fixture
def broker(make_broker: MakeBroker) -> Broker:
    broker = make_broker({"commit_log_file_size_bytes": 16 * 1024**2})
    broker.topics.put(TOPIC)
    return broker


def outcome(peer: Peer, way: Any, fields: dict[str, str], body: bytes = b"body", **command: Any) -> Any:
    """Return what was answered and what was stored, without what counts up."""
    request = RemotingCommand(310, 77, 0, dict(fields), body, **command)
    peer.sent.clear()
    try:
        response = way(peer.as_connection, request)
    except TriomqError as exc:
        return response_code(exc), remark_of(exc)
    if response is None:
        (response,) = peer.sent
    answered = dict(response.ext_fields)
    record = stored(peer, answered.pop("msgId"))
    answered.pop("queueOffset")
    return (
        response.code, response.flag, response.opaque, response.language, response.version, answered,
        record.topic, record.queue_id, record.flag, record.sys_flag, record.born_timestamp, record.born_host,
        record.store_host, record.reconsume_times, record.encoded_properties, record.stored_body, record.body_crc,
    )  # fmt: skip


def stored(peer: Peer, message_id: str) -> MessageExt:
    view = peer.broker.store.look_message(int(message_id[16:], 16))
    assert view is not None
    return decode_record(view)


def taken_the_long_way(monkeypatch: pytest.MonkeyPatch) -> list[RemotingCommand]:
    """Note the requests that the short way hands over."""
    handed: list[RemotingCommand] = []

    def long_way(connection: Any, command: RemotingCommand) -> RemotingCommand | None:
        handed.append(command)
        return send_message_v2(connection, command)

    monkeypatch.setattr(short, "send_message_v2", long_way)
    return handed


def test_a_plain_send_is_answered_here(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    handed = taken_the_long_way(monkeypatch)
    response = outcome(peer, short.plain_send, PLAIN)
    assert not handed
    assert response == outcome(peer, send_message_v2, PLAIN)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(changes=CHANGES, body=st.binary(max_size=40))
def test_both_ways_store_and_answer_the_same(broker: Broker, changes: dict[str, str | None], body: bytes) -> None:
    fields = {name: value for name, value in {**PLAIN, **changes}.items() if value is not None}
    peer = Peer(broker)
    try:
        expected = outcome(peer, send_message_v2, fields, body)
    except UnicodeEncodeError:  # cannot come from a decoded header
        return
    assert outcome(peer, short.plain_send, fields, body) == expected


def test_the_answer_is_the_one_that_the_general_writer_makes(peer: Peer) -> None:
    header = peer.broker.send_response % (b"0A4D000100002A9F0000000000000400", b"3", 12, -5)
    fields = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "msgId": "0A4D000100002A9F0000000000000400"}
    general = RemotingCommand(0, -5, 1, {**fields, "queueId": "3", "queueOffset": "12"}).encode()
    assert header == general[8:]


def test_a_region_is_written_as_json_whatever_is_in_it() -> None:
    header = short.response_template('100% "ours"') % (b"I", b"0", 0, 1)
    frame = len(header).to_bytes(4) + header
    assert RemotingCommand.decode(frame).ext_fields["MSG_REGION"] == '100% "ours"'


@pytest.mark.parametrize("header_format", [SerializeType.ROCKETMQ, SerializeType.MSGPACK])
def test_other_header_formats_take_the_long_way(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, header_format: SerializeType
) -> None:
    handed = taken_the_long_way(monkeypatch)
    assert outcome(peer, short.plain_send, PLAIN, serialize_type=int(header_format))[0] == ResponseCode.SUCCESS
    assert len(handed) == 1


def test_a_deleted_topic_is_not_remembered(peer: Peer) -> None:
    assert outcome(peer, short.plain_send, {**PLAIN, "c": "none"})[0] == ResponseCode.SUCCESS
    peer.broker.topics.delete("T")
    assert outcome(peer, short.plain_send, {**PLAIN, "c": "none"})[0] == ResponseCode.TOPIC_NOT_EXIST


def test_fewer_queues_hold_for_the_next_message(peer: Peer) -> None:
    fields = {**PLAIN, "e": "3"}
    assert outcome(peer, short.plain_send, fields)[0] == ResponseCode.SUCCESS
    peer.broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2))
    assert outcome(peer, short.plain_send, fields) == (ResponseCode.SYSTEM_ERROR, "request queueId[3] is illegal")


def test_a_topic_of_many_tags_gets_its_flag(peer: Peer) -> None:
    peer.broker.topics.put(
        TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4, topic_filter_type=TopicFilterType.MULTI_TAG)
    )
    assert outcome(peer, short.plain_send, PLAIN) == outcome(peer, send_message_v2, PLAIN)


def test_what_is_remembered_does_not_grow_with_what_peers_write(peer: Peer) -> None:
    targets = peer.broker.send_targets
    for queue_id in ("0", "00", "000", "٣", "1", "-1", "4", "99999999", "x", ""):
        targets.find("T", queue_id)
        targets.find(f"unknown{queue_id}", "0")
    assert set(targets._queues) == {("T", "0"), ("T", "1")}
