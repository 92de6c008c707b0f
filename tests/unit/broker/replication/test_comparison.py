"""Questions of a slave to its master's port: checksums of the log, and other answers."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, cast
from zlib import crc32

import pytest
import trio
from trio.testing import memory_stream_pair

from tests.unit.broker.recording import Peer
from triomq.broker.namesrv.route_table import Master
from triomq.broker.network.sessions import Session
from triomq.broker.replication.asking import MasterPort, UnreachableError
from triomq.broker.replication.comparison import Comparison, DivergedError, ForeignLogError
from triomq.broker.server import Broker
from triomq.protocol.bodies.route import KVTable
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.requests.offsets import LogChecksum, LogChecksumRequestHeader
from triomq.protocol.wire.command import RemotingCommand

MIB = 1024**2


async def ask(broker: Broker, begin: int, end: int) -> RemotingCommand:
    peer = Peer(broker)
    async with trio.open_nursery() as broker.worker.nursery:
        response = peer.ask(RequestCode.GET_LOG_CHECKSUM, LogChecksumRequestHeader(begin, end))
    return response or peer.sent[-1]


def log_bytes(broker: Broker) -> bytes:
    return b"".join(bytes(file.view) for file in broker.store.commit_log.files.files)


async def test_checksum_is_that_of_the_piece(broker: Broker) -> None:
    for number in range(20):
        Peer(broker).put("T", b"%d" % number * 20_000)
    end = broker.store.commit_log.max_offset
    assert len(broker.store.commit_log.files.files) > 1
    for begin, stop in ((0, end), (7, 8), (end - 300_000, end - 1), (5, 5)):
        found = LogChecksum.decode((await ask(broker, begin, stop)).ext_fields)
        assert found == LogChecksum(crc32(log_bytes(broker)[begin:stop]), 0, end)


@pytest.mark.parametrize(("begin", "end"), [(-1, 10), (0, 10**9), (10, 5), (2**40, 2**40 + 1)])
async def test_piece_that_the_log_lacks_is_refused(broker: Broker, begin: int, end: int) -> None:
    Peer(broker).put("T")
    assert (await ask(broker, begin, end)).code == ResponseCode.PULL_OFFSET_MOVED


async def test_log_without_files_has_ends(broker: Broker) -> None:
    assert LogChecksum.decode((await ask(broker, 0, 0)).ext_fields) == LogChecksum(0, -1, 0)


class PlayedPort:
    """The port of a master whose answers a test gives."""

    def __init__(self, broker: Broker, answers: Mapping[tuple[int, int], RemotingCommand]) -> None:
        self.registration = broker.registration
        self.registration.master = Master("192.0.2.1:10911", "192.0.2.1:10912")
        self.answers = answers
        self.others: dict[int, RemotingCommand] = {
            RequestCode.GET_BROKER_RUNTIME_INFO: answer(ResponseCode.NO_PERMISSION)
        }

    async def connect(self, master: Master) -> Any:
        assert master == self.registration.master
        return memory_stream_pair()[0]

    async def ask(self, session: Session, code: int, fields: Mapping[str, str] | None = None) -> RemotingCommand:
        if code != RequestCode.GET_LOG_CHECKSUM:
            await trio.lowlevel.checkpoint()
            return self.others[code]
        assert fields is not None
        piece = LogChecksumRequestHeader.decode(dict(fields))
        await trio.lowlevel.checkpoint()
        return self.answers[piece.begin, piece.end]


def answer(code: int = ResponseCode.SUCCESS, fields: LogChecksum | None = None) -> RemotingCommand:
    return RemotingCommand(code, 1, 1, None if fields is None else fields.encode())


def comparison_of(broker: Broker, answers: Mapping[tuple[int, int], RemotingCommand]) -> Comparison:
    return Comparison(broker.store, broker.worker, cast(MasterPort, PlayedPort(broker, answers)))


@pytest.mark.parametrize(
    ("code", "is_logged"),
    [(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, False), (ResponseCode.NO_PERMISSION, True)],
)
async def test_master_that_gives_no_checksums_is_followed(
    broker: Broker, caplog: pytest.LogCaptureFixture, code: int, is_logged: bool
) -> None:
    Peer(broker).put("T")
    comparison = comparison_of(broker, {(0, 0): answer(code)})
    await comparison.begin()
    await comparison.run()
    assert ("log is not compared" in caplog.text) == is_logged


@pytest.mark.parametrize(
    ("ends", "change", "is_followed"),
    [
        ((0, 1), b"", True),
        ((0, 0), b"", True),
        ((0, -1), b"", False),
        ((0, 1), b"other", False),
        ((1, 1), b"other", True),  # the master has deleted it
    ],
)
async def test_last_record_is_compared_with_masters_of_rocketmq(
    broker: Broker, ends: tuple[int, int], change: bytes, is_followed: bool
) -> None:
    """``ends``: whether the master's log begins after the last record here, and how much longer it is."""
    log = broker.store.commit_log
    Peer(broker).put("T")
    begin = log.max_offset
    Peer(broker).put("T")
    port = PlayedPort(broker, {(0, 0): answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)})
    info = {"commitLogMinOffset": f"{ends[0] * (begin + 1)}", "commitLogMaxOffset": f"{log.max_offset + ends[1]}"}
    record = change or log_bytes(broker)[begin : log.max_offset]
    port.others[RequestCode.GET_BROKER_RUNTIME_INFO] = RemotingCommand(0, 1, 1, {}, KVTable(info).encode())
    port.others[RequestCode.VIEW_MESSAGE_BY_ID] = RemotingCommand(0, 1, 1, {}, record)
    comparison = Comparison(broker.store, broker.worker, cast(MasterPort, port))
    with nullcontext() if is_followed else pytest.raises(ForeignLogError, match=f"at {begin}, is another"):
        await comparison.begin()


async def test_busy_master_is_asked_again_before_following(broker: Broker) -> None:
    with pytest.raises(UnreachableError, match="checksum refused"):
        await comparison_of(broker, {(0, 0): answer(ResponseCode.SYSTEM_BUSY)}).begin()


async def test_empty_slave_follows_any_log(broker: Broker) -> None:
    await comparison_of(broker, {(0, 0): answer(fields=LogChecksum(0, 5 * MIB, 6 * MIB))}).begin()


async def test_slave_of_an_empty_master_keeps_its_log(broker: Broker) -> None:
    Peer(broker).put("T")
    with pytest.raises(ForeignLogError):
        await comparison_of(broker, {(0, 0): answer(fields=LogChecksum(0, -1, 0))}).begin()


async def test_what_the_master_lacks_begins_at_its_end(broker: Broker) -> None:
    log = broker.store.commit_log
    Peer(broker).put("T")
    end = log.max_offset
    Peer(broker).put("T")
    crc = crc32(log_bytes(broker)[:end])
    answers = {(0, 0): answer(fields=LogChecksum(0, 0, end)), (0, end): answer(fields=LogChecksum(crc, 0, end))}
    with pytest.raises(DivergedError) as raised:
        await comparison_of(broker, answers).begin()
    assert raised.value.begin == end
