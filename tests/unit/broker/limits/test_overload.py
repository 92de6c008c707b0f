"""Sends that have waited too long are refused."""

from typing import Any

import pytest

from tests.commands import make_command
from tests.unit.broker.recording import MakeBroker, Peer
from triomq.protocol.codes import CommandFlag, RequestCode, ResponseCode, SerializeType
from triomq.protocol.errors import ProtocolError, RefusedError, TriomqError

SENDS = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK,
)
REMARK = "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 70ms"


@pytest.fixture
def peer(make_broker: MakeBroker) -> Peer:
    return Peer(make_broker(region="100%"))


def make_late(peer: Peer, now: float = 10.0) -> float:
    """Make the reads of a peer late for a second until now; return when those of 70 ms ago arrived."""
    peer.broker.worker.clock = lambda: now
    peer.broker.worker.begin_step()
    peer.late_since = now - 1
    return now - 0.07


def frame(code: int, opaque: int = 1, flag: int = 0, **fields: Any) -> bytes:
    return make_command(code, opaque, flag, {}, b"body", **fields).encode()[4:]


@pytest.mark.parametrize("in_one_read", [False, True])
def test_refusals_begin_and_end_after_a_second(peer: Peer, in_one_read: bool) -> None:
    broker, other = peer.broker, Peer(peer.broker, "192.0.2.10:50002")
    command = make_command(RequestCode.SEND_MESSAGE_V2, 1, 0, {}, b"")

    def is_shed(sender: Peer, now: float) -> bool:
        """Whether a late send is refused; otherwise its missing fields are reported."""
        before, broker.worker.clock = broker.statistics.shed_sends, lambda: now
        broker.worker.begin_step()
        if in_one_read:
            list(broker.pipeline.commands(sender.as_connection, iter([command.encode()[4:]]), now - 0.07))
        else:
            with pytest.raises(TriomqError):
                broker.pipeline.serve(sender.as_connection, command, now - 0.07)
        return broker.statistics.shed_sends > before

    assert not is_shed(peer, 10.0)
    assert not is_shed(peer, 10.9)
    peer.late_since = 0.0  # a read in time between
    assert not is_shed(peer, 11.5)
    assert not is_shed(peer, 12.4)
    assert is_shed(peer, 12.5)
    peer.late_since = 0.0
    assert is_shed(other, 12.6)
    assert is_shed(peer, 13.5)
    assert not is_shed(Peer(broker), 14.6)
    object.__setattr__(broker.config, "max_send_wait_s", 0.0)
    assert not is_shed(other, 14.7)


def test_only_requests_that_store_are_refused(peer: Peer) -> None:
    arrived_at = make_late(peer)
    refused = [frame(code, 100 + number) for number, code in enumerate(SENDS)]
    refused += [frame(SENDS[0], 110, serialize_type=SerializeType.ROCKETMQ), frame(SENDS[0], -7)]
    refused.append(frame(SENDS[0], 120, int(CommandFlag.ONEWAY)))
    others = [
        frame(RequestCode.PULL_MESSAGE, 201),
        frame(RequestCode.END_TRANSACTION, 202),
        frame(RequestCode.HEART_BEAT, 203),
        frame(ResponseCode.FLUSH_DISK_TIMEOUT, 204, int(CommandFlag.RESPONSE)),  # its number is that of a send
    ]
    frames = iter([*others[:2], *refused, *others[2:]])
    served = []
    for command in peer.broker.pipeline.commands(peer.as_connection, frames, arrived_at):
        if command.opaque > 200:
            served.append(command.opaque)
            continue
        with pytest.raises(RefusedError) as error:
            peer.broker.pipeline.serve(peer.as_connection, command, arrived_at)
        peer.refuse(command, error.value)
    assert served == [201, 202, 203, 204]
    assert [answer.opaque for answer in peer.sent] == [100, 101, 102, 103, 110, -7]
    for answer in peer.sent:
        assert (answer.code, answer.is_response, answer.remark) == (ResponseCode.SYSTEM_BUSY, True, REMARK)
        assert answer.ext_fields == {"MSG_REGION": "100%", "TRACE_ON": "true", "retryAfterMs": "500"}
    assert peer.broker.statistics.shed_sends == 7
    with pytest.raises(ProtocolError):  # it is in time, and served: a field is missing
        peer.broker.pipeline.serve(peer.as_connection, make_command(SENDS[0], 1, 0, {}, b""))
    assert not peer.late_since


def test_refusals_before_a_bad_frame_are_answered(peer: Peer) -> None:
    arrived_at = make_late(peer)
    frames = iter([frame(RequestCode.SEND_MESSAGE_V2, 5), b"\0\0\0\4nope"])
    with pytest.raises(ProtocolError):
        next(peer.broker.pipeline.commands(peer.as_connection, frames, arrived_at))
    assert [answer.opaque for answer in peer.sent] == [5]
