"""Who has waited too long, and what a refusal looks like."""

from pathlib import Path
from typing import Any

import pytest

from tests.commands import make_command
from triomq.broker.config import BrokerConfig
from triomq.broker.limits.overload import Overload
from triomq.broker.limits.refused import Refusals
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.protocol.codes import CommandFlag, RequestCode, ResponseCode, SerializeType
from triomq.protocol.errors import ProtocolError
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import FrameSplitter
from triomq.storage.config import StoreConfig


class Peer:
    def __init__(self) -> None:
        self.peer = "192.0.2.9:50001"
        self.late_since = 0.0
        self.answers: list[RemotingCommand] = []

    def send_frame(self, frame: bytes) -> None:
        self.answers += map(RemotingCommand.decode, FrameSplitter().split(frame)[0])


@pytest.fixture
def statistics() -> BrokerStatistics:
    return BrokerStatistics(0)


@pytest.fixture
def overload(statistics: BrokerStatistics) -> Overload:
    config = BrokerConfig(store=StoreConfig(root=Path("unused")))
    return Overload(config, statistics, Refusals(statistics, "100%"))


def frame(code: int, opaque: int = 1, flag: int = 0, **fields: Any) -> bytes:
    return make_command(code, opaque, flag, {}, b"body", **fields).encode()[4:]


def serve(overload: Overload, peer: Peer, now: float, *frames: bytes) -> list[RemotingCommand] | None:
    """Serve late frames; return the answers, ``None`` if they are served as usual."""
    next_command = overload.next_command(peer, now, now - 0.07, None)
    if next_command is None:
        return None
    assert next_command(peer, iter(frames)) is None
    return peer.answers


def test_refusals_begin_and_end_after_a_second(overload: Overload) -> None:
    one, other = Peer(), Peer()
    send = frame(RequestCode.SEND_MESSAGE_V2)
    assert serve(overload, one, 10.0, send) is None
    assert serve(overload, one, 10.9, send) is None
    one.late_since = 0.0  # a read in time between
    assert serve(overload, one, 11.5, send) is None
    assert serve(overload, one, 12.4, send) is None
    assert serve(overload, one, 12.5, send)
    one.late_since = 0.0
    assert serve(overload, other, 12.6, send)
    assert serve(overload, one, 13.5, send)
    assert serve(overload, Peer(), 14.6, send) is None
    object.__setattr__(overload._config, "max_send_wait_s", 0.0)
    assert serve(overload, other, 14.7, send) is None


def test_only_requests_that_store_are_refused(overload: Overload, statistics: BrokerStatistics) -> None:
    peer = Peer()
    peer.late_since = 1.0
    next_command = overload.next_command(peer, 10.0, 9.93, None)
    assert next_command is not None
    sends = (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
    )
    refused = [frame(code, 100 + number) for number, code in enumerate(sends)]
    refused += [frame(code, 110, serialize_type=SerializeType.ROCKETMQ) for code in sends[:1]]
    refused.append(frame(sends[0], -7))
    refused.append(frame(sends[0], 120, int(CommandFlag.ONEWAY)))
    served = [
        frame(RequestCode.PULL_MESSAGE, 201),
        frame(RequestCode.END_TRANSACTION, 202),
        frame(RequestCode.HEART_BEAT, 203),
        frame(ResponseCode.FLUSH_DISK_TIMEOUT, 204, int(CommandFlag.RESPONSE)),  # its number is that of a send
    ]
    frames = iter([*served[:2], *refused, *served[2:]])
    left = iter(lambda: next_command(peer, frames), None)
    assert [command.opaque for command in left] == [201, 202, 203, 204]
    assert [answer.opaque for answer in peer.answers] == [100, 101, 102, 103, 110, -7]
    for answer in peer.answers:
        assert (answer.code, answer.is_response) == (ResponseCode.SYSTEM_BUSY, True)
        assert answer.ext_fields["retryAfterMs"] == "500"
    assert {answer.remark for answer in peer.answers} == {
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 70ms"
    }
    assert (
        peer.answers[0].ext_fields
        == peer.answers[-1].ext_fields
        == {"MSG_REGION": "100%", "TRACE_ON": "true", "retryAfterMs": "500"}
    )
    assert statistics.shed_sends == 7


def test_refusals_before_a_bad_frame_are_answered(overload: Overload) -> None:
    peer = Peer()
    peer.late_since = 1.0
    next_command = overload.next_command(peer, 10.0, 9.93, None)
    assert next_command is not None
    with pytest.raises(ProtocolError):
        next_command(peer, iter([frame(RequestCode.SEND_MESSAGE_V2, 5), b"\0\0\0\4nope"]))
    assert [answer.opaque for answer in peer.answers] == [5]
