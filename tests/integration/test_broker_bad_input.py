"""Input from broken or hostile peers: a clear error for the sender, one line in the log, no effect on others."""

import logging
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.integration.broker_wire import (
    Wire,
    broker_port,
    connected,
    namesrv_port,
    pull_fields,
    request,
    running,
    send_fields,
    until,
)
from triomq.broker.server import Broker
from triomq.protocol.bodies.client import ConsumerData, HeartbeatData
from triomq.protocol.bodies.route import SubscriptionGroupConfig
from triomq.protocol.codes import RequestCode, ResponseCode, SerializeType
from triomq.protocol.requests.catalogue import CATALOGUE

SEND = RequestCode.SEND_MESSAGE_V2
LOGGER_NAME = "triomq.broker.limits.refused"


def frame(header: bytes, *, serialize_type: int = 0, header_length: int | None = None, body: bytes = b"") -> bytes:
    """Return a frame whose parts need not fit together."""
    word = serialize_type << 24 | (len(header) if header_length is None else header_length)
    return struct.pack(">iI", 4 + len(header) + len(body), word) + header + body


BAD_FRAMES = {
    "negative length": struct.pack(">i", -1) + bytes(100),
    "least length": struct.pack(">i", -(2**31)) + bytes(100),
    "length of 2 GiB": struct.pack(">i", 2**31 - 1) + bytes(100),
    "length just above the limit": struct.pack(">i", 16 * 1024**2 - 3) + bytes(100),
    "length 0": struct.pack(">i", 0) + bytes(100),
    "length without header word": struct.pack(">i", 3) + bytes(100),
    "header beyond the frame": frame(b'{"code":30}', header_length=12),
    "header of 16 MiB": frame(b'{"code":30}', header_length=0xFFFFFF),
    "empty header": frame(b""),
    "no JSON": frame(b'{"code":30,'),
    "JSON with rubbish behind it": frame(b'{"code":30}x'),
    "JSON that is no object": frame(b"[1,2,3]"),
    "JSON without code": frame(b'{"opaque":1}'),
    "code that is no number": frame(b'{"code":"x","opaque":1}'),
    "opaque beyond int32": frame(b'{"code":30,"opaque":4294967296}'),
    "extFields that are no object": frame(b'{"code":30,"opaque":1,"extFields":[1]}'),
    "invalid UTF-8": frame(b'{"code":30,"remark":"\xff"}'),
    "deeply nested JSON": frame(b"[" * 100_000),
    "unknown serialisation": frame(b'{"code":30}', serialize_type=2),
    "another unknown serialisation": frame(b'{"code":30}', serialize_type=255),
    "truncated ROCKETMQ header": frame(bytes(10), serialize_type=1),
    "ROCKETMQ remark beyond the header": frame(struct.pack(">hBhiii", 30, 0, 0, 1, 0, 99), serialize_type=1),
    "ROCKETMQ remark of negative length": frame(
        struct.pack(">hBhiii", 30, 0, 0, 1, 0, -1) + bytes(8), serialize_type=1
    ),
    "ROCKETMQ fields beyond the header": frame(struct.pack(">hBhiiii", 30, 0, 0, 1, 0, 0, 2**31 - 1), serialize_type=1),
    "rubbish as msgpack": frame(b"\xc1\xc1\xc1", serialize_type=SerializeType.MSGPACK),
    "msgpack that is no array": frame(b"\x01", serialize_type=SerializeType.MSGPACK),
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": bytes.fromhex("16030100f5010000f10303") + bytes(100),
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


@asynccontextmanager
async def bystander(root: Path, **settings: Any) -> AsyncGenerator[tuple[Broker, Wire]]:
    """A broker and a connection that has sent a message, and must find everything as it left it."""
    async with running(root, **settings) as broker, connected(broker_port(broker)) as wire:
        await wire.put("T", b"before")
        yield broker, wire
        pulled = await wire.ask(RequestCode.PULL_MESSAGE, pull_fields("T"))
        assert pulled.code == ResponseCode.SUCCESS
        response = await wire.put("T", b"after")
        assert response.code == ResponseCode.SUCCESS


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


STRANGERS = {"HTTP": "HTTP client", "TLS": "TLS client", "SSH": "SSH peer", "HTTP/2": "HTTP/2"}


@pytest.mark.parametrize("kind", BAD_FRAMES)
async def test_bad_frame_closes_only_its_connection(
    root: Path, mock_clock: MockClock, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    async with bystander(root) as (broker, _):
        for port in (broker_port(broker), namesrv_port(broker)):
            caplog.clear()
            async with connected(port) as stranger:
                await stranger.send(BAD_FRAMES[kind])
                assert await stranger.is_closed_by_broker()
                name = stranger.stream.socket.getsockname()
            (line,) = warnings(caplog)
            assert f"peer={name[0]}:{name[1]}" in line
            assert STRANGERS.get(kind, "") in line
        assert broker.statistics.bad_frames == 2


async def test_requests_before_a_bad_frame_are_answered(root: Path, mock_clock: MockClock) -> None:
    async with bystander(root) as (broker, _):
        for bad in ("negative length", "no JSON"):
            async with connected(broker_port(broker)) as wire:
                good = b"".join(request(SEND, send_fields(), b"x", opaque=n) for n in range(3))
                await wire.send(good + BAD_FRAMES[bad])
                assert [(await wire.next()).opaque for _ in range(3)] == [0, 1, 2]
                assert await wire.is_closed_by_broker()


async def test_endless_frame_holds_no_memory_or_peer(root: Path, mock_clock: MockClock) -> None:
    """It claims 16 MiB and sends 1 KiB."""
    async with bystander(root) as (broker, wire), connected(broker_port(broker)) as slow:
        await slow.send(struct.pack(">i", 16 * 1024**2 - 4) + bytes(1020))
        await wait_all_tasks_blocked()
        (pending,) = {each._splitter.pending_bytes for each in broker.connections} - {0}
        assert pending == 1024
        assert await wire.works()


async def test_truncated_frame_is_logged_once(
    root: Path, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with bystander(root) as (broker, _):
        caplog.clear()
        async with connected(broker_port(broker)) as wire:
            await wire.send(request(SEND, send_fields(), b"x" * 100)[:-1])
        await until(lambda: len(broker.connections) == 1)
        assert len(warnings(caplog)) == 1
        assert "inside a frame" in warnings(caplog)[0]
        assert broker.statistics.put_messages == 1


# --- requests that are read and refused ---------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["with space", "a/b", "..", "../../etc/passwd", "t" * 128, "", "ü", "a\0b"])
async def test_illegal_topic_name_is_rejected_in_every_field(root: Path, mock_clock: MockClock, topic: str) -> None:
    create = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
    }  # fmt: skip
    async with bystander(root) as (broker, _), connected(broker_port(broker)) as wire:
        before = sorted(path.name for path in (root / "consumequeue").iterdir())
        for code, fields in (
            (SEND, send_fields(topic)),
            (RequestCode.UPDATE_AND_CREATE_TOPIC, create),
            (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}),
        ):
            response = await wire.ask(code, fields)
            assert response.code == ResponseCode.SYSTEM_ERROR
            assert response.remark
        for code in (RequestCode.PULL_MESSAGE, RequestCode.GET_TOPIC_STATS_INFO, RequestCode.GET_ROUTEINFO_BY_TOPIC):
            assert (await wire.ask(code, pull_fields(topic))).code == ResponseCode.TOPIC_NOT_EXIST
        assert sorted(path.name for path in (root / "consumequeue").iterdir()) == before


@pytest.mark.parametrize("group", ["with space", "a@b", "g" * 256, "", "../g"])
async def test_illegal_group_name_is_rejected_in_every_field(root: Path, mock_clock: MockClock, group: str) -> None:
    heartbeat = HeartbeatData("c", [], [ConsumerData(group_name=group)]).encode()
    config = SubscriptionGroupConfig(group_name=group).encode()
    offset = {"consumerGroup": group, "topic": "T", "queueId": 0, "commitOffset": 1}
    async with bystander(root) as (broker, _), connected(broker_port(broker)) as wire:
        for code, fields, body in (
            (RequestCode.HEART_BEAT, {}, heartbeat),
            (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, config),
            (RequestCode.UPDATE_CONSUMER_OFFSET, offset, b""),
            (RequestCode.PULL_MESSAGE, pull_fields(consumerGroup=group), b""),
        ):
            response = await wire.ask(code, fields, body)
            assert response.code == ResponseCode.SYSTEM_ERROR
            assert response.remark
        assert broker.groups.settings.get(group) is None


async def test_oversized_body_is_rejected_and_connection_stays_open(root: Path, mock_clock: MockClock) -> None:
    """C.2 scenario 5."""
    async with bystander(root) as (broker, _), connected(broker_port(broker)) as wire:
        response = await wire.put("T", bytes(4 * 1024**2 + 1))
        assert response.code == ResponseCode.MESSAGE_ILLEGAL
        response = await wire.put("T", i="p\x01" + "x" * 32_768)
        assert response.code == ResponseCode.MESSAGE_ILLEGAL
        assert (await wire.put("T", bytes(4 * 1024**2))).code == ResponseCode.SUCCESS


async def test_processor_failure_affects_only_its_request(
    root: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a programming error")

    async with bystander(root) as (broker, other), connected(broker_port(broker)) as wire:
        monkeypatch.setitem(
            broker.pipeline.served, RequestCode.GET_MIN_OFFSET, (CATALOGUE[RequestCode.GET_MIN_OFFSET], broken)
        )
        response = await wire.ask(RequestCode.GET_MIN_OFFSET, {"topic": "T", "queueId": 0})
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert response.remark == "ZeroDivisionError: a programming error"
        assert await wire.works()
        assert await other.works()
        errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert [record.name for record in errors] == [LOGGER_NAME]


@pytest.mark.parametrize("code", list(RequestCode))
async def test_headerless_request_with_garbage_body_is_answered(
    root: Path, mock_clock: MockClock, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    async with bystander(root) as (broker, _), connected(broker_port(broker)) as wire:
        is_served = code in broker.pipeline.served
        for body in (b"", b"\xff\x00rubbish", b"{}", b"[]", b"null"):
            response = await wire.ask(code, {}, body)
            assert (response.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED) == is_served
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_thousand_connections_come_and_go(root: Path, mock_clock: MockClock) -> None:
    async with bystander(root) as (broker, wire):
        for _ in range(20):
            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(visit, broker_port(broker))
        await until(lambda: len(broker.connections) == 1)
        assert await wire.works()


async def visit(port: int) -> None:
    async with connected(port) as wire:
        assert await wire.works()
