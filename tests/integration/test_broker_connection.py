"""Connections over real sockets: order, silence, holding, closing.  Only a test moves the clock."""

import contextlib
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.integration.broker_wire import (
    FREE_PORTS,
    Wire,
    broker_port,
    connected,
    namesrv_port,
    pull_fields,
    request,
    running,
    send_fields,
    until,
    vip_port,
)
from tests.subscriptions import tag_subscription
from tests.unit.broker.recording import make_steps_short
from triomq.broker.addresses import Address
from triomq.broker.network.connection import Connection
from triomq.protocol.bodies.client import ConsumerData, HeartbeatData
from triomq.protocol.bodies.route import TopicConfig, TopicRouteData
from triomq.protocol.codes import CommandFlag, RequestCode, ResponseCode, SerializeType
from triomq.protocol.record.record import decode_records
from triomq.protocol.requests.catalogue import CATALOGUE
from triomq.protocol.wire.command import RemotingCommand

SEND = RequestCode.SEND_MESSAGE_V2
PULL = RequestCode.PULL_MESSAGE
HOLD: Final[dict[str, Any]] = {"sysFlag": 6}


def heartbeat(client_id: str, group: str = "G") -> bytes:
    consumer = ConsumerData(group_name=group, subscription_data_set=[tag_subscription("T", "*", 1)])
    return HeartbeatData(client_id, [], [consumer]).encode()


async def test_a_message_goes_through(root: Path, mock_clock: MockClock) -> None:
    async with running(root) as broker, connected(broker_port(broker)) as wire:
        response = await wire.put("T", b"body", i="TAGS\x01A")
        assert response.ext_fields["queueOffset"] == "0"
        pulled = await wire.ask(PULL, pull_fields("T"))
        (message,) = decode_records(pulled.body)
        assert (message.stored_body, message.tags, message.offset_message_id) == (
            b"body",
            "A",
            response.ext_fields["msgId"],
        )
        assert message.store_host == f"127.0.0.1:{broker_port(broker)}"
        socket_name = wire.stream.socket.getsockname()
        assert message.born_host == f"127.0.0.1:{socket_name[1]}"


@pytest.mark.parametrize("read_bytes", [64 * 1024, 4 * 1024])
async def test_pipelined_frames_are_answered_in_one_write(
    root: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    """Also if a socket holds more than one read takes, up to four times as much."""
    flushes: list[str] = []
    flush = Connection.flush

    def counting_flush(self: Connection) -> None:
        flushes.append(self.peer)
        flush(self)

    monkeypatch.setattr(Connection, "flush", counting_flush)
    monkeypatch.setattr("triomq.broker.network.connection._READ_BYTES", read_bytes)
    async with running(root) as broker, connected(broker_port(broker)) as wire:
        broker.worker.clock = lambda: 0.0  # one step is enough
        await wire.put("T")
        flushes.clear()
        frames = b"".join(request(SEND, send_fields(), b"%d" % n, opaque=n) for n in range(50))
        assert 8 * 1024 < len(frames) < 16 * 1024
        await wire.send(frames)
        responses = [await wire.next() for _ in range(50)]
        assert [response.opaque for response in responses] == list(range(50))
        assert [int(response.ext_fields["queueOffset"]) for response in responses] == list(range(1, 51))
        assert len(flushes) == 1


async def test_many_requests_of_a_peer_take_turns(root: Path, mock_clock: MockClock) -> None:
    """Each of them takes a whole step here; the peer is served in order, and read again when all are served."""
    async with running(root) as broker, connected(broker_port(broker)) as busy, connected(broker_port(broker)) as other:
        make_steps_short(broker)
        served: list[str] = []

        def serve(connection: Connection, command: RemotingCommand) -> RemotingCommand:
            served.append(command.ext_fields["name"])
            return command.reply()

        broker.pipeline.served[RequestCode.GET_MAX_OFFSET] = CATALOGUE[RequestCode.GET_MAX_OFFSET], serve
        names = [f"busy {number}" for number in range(200)]
        requests = [request(RequestCode.GET_MAX_OFFSET, {"name": name}) for name in names]
        await busy.send(b"".join(requests))
        await until(lambda: bool(served))
        await other.ask(RequestCode.GET_MAX_OFFSET, {"name": "other"})
        assert served.index("other") < 20
        await until(lambda: len(served) == 201)
        assert [name for name in served if name != "other"] == names
        for _ in names:
            await busy.next()
        await busy.ask(RequestCode.GET_MAX_OFFSET, {"name": "again"})


async def test_peer_waits_after_long_uninterrupted_work(root: Path, mock_clock: MockClock) -> None:
    async with running(root) as broker, connected(broker_port(broker)) as wire:
        make_steps_short(broker)
        times: list[float] = []

        def serve(_connection: Connection, command: RemotingCommand) -> RemotingCommand:
            times.append(trio.current_time())
            broker.worker.charge(0.04)
            return command.reply()

        broker.pipeline.served[RequestCode.GET_MAX_OFFSET] = CATALOGUE[RequestCode.GET_MAX_OFFSET], serve
        await wire.send(request(RequestCode.GET_MAX_OFFSET, {}) * 3)
        mock_clock.rate = 100
        await until(lambda: len(times) == 3)
        assert times[2] - times[0] >= 2 * 20 * 0.04


async def test_sends_that_wait_too_long_are_refused_unstored(root: Path, mock_clock: MockClock) -> None:
    """For two seconds the round before took 1/8 s, for another peer; questions are answered all the time."""
    async with running(root) as broker, connected(broker_port(broker)) as slow, connected(broker_port(broker)) as wire:
        now = 0.0
        broker.worker.clock = lambda: now

        def serve(_connection: Connection, command: RemotingCommand) -> RemotingCommand:
            nonlocal now
            now += 0.125
            return command.reply()

        broker.pipeline.served[RequestCode.PULL_MESSAGE] = CATALOGUE[RequestCode.PULL_MESSAGE], serve
        codes = []
        for _ in range(20):
            await slow.ask(RequestCode.PULL_MESSAGE)
            question = request(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}, opaque=2)
            await wire.send(request(SEND, send_fields(), b"hello", opaque=1) + question)
            codes.append((await wire.next()).code)
            assert (await wire.next()).code == ResponseCode.SUCCESS
        assert codes == [ResponseCode.SUCCESS] * 8 + [ResponseCode.SYSTEM_BUSY] * 12
        assert broker.statistics.put_messages == 8
        assert (await wire.put()).code == ResponseCode.SUCCESS


async def test_sends_left_unread_during_long_service_are_refused(root: Path, mock_clock: MockClock) -> None:
    """The peer's first requests take 10 steps of 1/8 s; a send of its waits in the socket meanwhile."""
    async with running(root) as broker, connected(broker_port(broker)) as wire:
        now = 1.0
        broker.worker.clock = lambda: now
        served = 0

        def serve(_connection: Connection, command: RemotingCommand) -> RemotingCommand:
            nonlocal now, served
            now, served = now + 0.125, served + 1
            return command.reply()

        broker.pipeline.served[RequestCode.PULL_MESSAGE] = CATALOGUE[RequestCode.PULL_MESSAGE], serve
        await wire.send(request(RequestCode.PULL_MESSAGE, {}) * 10)
        await until(lambda: served > 0)
        await wire.send(request(SEND, send_fields(), b"hello"))
        codes = [(await wire.next()).code for _ in range(11)]
        assert codes == [ResponseCode.SUCCESS] * 10 + [ResponseCode.SYSTEM_BUSY]
        now += 0.1
        await wire.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0})
        assert (await wire.put()).code == ResponseCode.SUCCESS  # it has arrived since


@pytest.mark.parametrize("serialize_type", list(SerializeType))
async def test_the_answer_has_the_serialisation_of_its_request(
    root: Path, mock_clock: MockClock, serialize_type: SerializeType
) -> None:
    async with running(root) as broker, connected(broker_port(broker)) as wire:
        for code, fields in ((SEND, send_fields()), (PULL, pull_fields()), (9999, {}), (SEND, {})):
            response = await wire.ask(code, fields, serialize_type=serialize_type)
            assert response.serialize_type == serialize_type


async def test_oneway_request_never_gets_a_response(root: Path, mock_clock: MockClock) -> None:
    oneway = int(CommandFlag.ONEWAY)
    async with running(root) as broker, connected(broker_port(broker)) as wire:
        for code, fields in (
            (SEND, send_fields()),
            (SEND, send_fields("bad name")),
            (SEND, {}),
            (PULL, pull_fields()),
            (PULL, pull_fields(queue_offset=1, **HOLD)),
            (9999, {}),
            (RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}),
        ):
            await wire.send(request(code, fields, b"x", flag=oneway))
        response = await wire.put("T")
        assert response.ext_fields["queueOffset"] == "1"
        assert broker.pulls.hold.held == 0


@pytest.mark.parametrize("code", [9999, 400, 200_050, -5, 0])
async def test_an_unknown_request_is_answered_with_code_3(root: Path, mock_clock: MockClock, code: int) -> None:
    async with running(root) as broker:
        for port in (broker_port(broker), vip_port(broker), namesrv_port(broker)):
            async with connected(port) as wire:
                response = await wire.ask(code)
                assert response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                assert str(response.remark).startswith(f" request type {code} not supported")


async def test_unsolicited_response_is_counted_and_dropped(root: Path, mock_clock: MockClock) -> None:
    async with running(root) as broker, connected(broker_port(broker)) as wire:
        await wire.send(request(ResponseCode.SUCCESS, opaque=77, flag=int(CommandFlag.RESPONSE)))
        assert await wire.works()
        assert broker.statistics.unmatched_responses == 1


@pytest.mark.parametrize("fast_listen", [None, Address("127.0.0.1", 0)], ids=["vip", "fast_listen"])
async def test_the_fast_port_serves_everything_but_pulls(
    root: Path, mock_clock: MockClock, fast_listen: Address | None
) -> None:
    """C.2 scenario 28."""
    async with running(root, fast_listen=fast_listen) as broker:
        fast = broker.listeners.fast
        async with connected(vip_port(broker) if fast is None else fast.port) as wire:
            response = await wire.put("T")
            assert response.code == ResponseCode.SUCCESS
            assert response.ext_fields["msgId"][8:16] == f"{broker_port(broker):08X}"
            for code in (PULL, RequestCode.LITE_PULL_MESSAGE):
                assert (await wire.ask(code, pull_fields())).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert await wire.works()


@pytest.mark.parametrize(
    ("advertise", "told"),
    [(None, "127.0.0.1:{port}"), ("broker.invalid", "broker.invalid:{port}"), ("broker.invalid:7", "broker.invalid:7")],
)
async def test_route_has_advertised_address(
    root: Path, mock_clock: MockClock, advertise: str | None, told: str
) -> None:
    listener = replace(FREE_PORTS, advertise=advertise)
    async with running(root, listeners=(listener,)) as broker:
        for port in (namesrv_port(broker), broker_port(broker)):
            async with connected(port) as wire:
                response = await wire.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
                address = told.format(port=broker_port(broker))
                assert TopicRouteData.decode(response.body).broker_datas[0].broker_addrs == {0: address}
        async with connected(broker_port(broker)) as wire:  # a name without an address: ids carry the local one
            sent = await wire.put("T")
            assert sent.ext_fields["msgId"].startswith(f"7F000001{broker_port(broker):08X}")


async def test_connections_above_limit_are_closed_and_others_kept(root: Path, mock_clock: MockClock) -> None:
    async with running(root, max_connections=1) as broker, connected(broker_port(broker)) as first:
        assert await first.works()
        async with connected(broker_port(broker)) as second:
            assert await second.is_closed_by_broker()
        assert await first.works()
        assert broker.statistics.refused_connections == 1


async def test_request_is_answered_after_sender_half_closes(root: Path, mock_clock: MockClock) -> None:
    async with running(root) as broker, connected(broker_port(broker)) as wire:
        await wire.send(request(SEND, send_fields(), b"last words"))
        await wire.stream.send_eof()
        assert (await wire.next()).code == ResponseCode.SUCCESS
        assert await wire.is_closed_by_broker()


# --- long polling -------------------------------------------------------------------------------------------


async def hold_pull(broker: Any, wire: Any, **fields: Any) -> None:
    """Send a pull and wait until the broker holds it."""
    before = broker.pulls.hold.held
    await wire.send(request(PULL, pull_fields(**{**HOLD, **fields}), opaque=5))
    await until(lambda: broker.pulls.hold.held == before + 1)


async def test_held_pull_does_not_block_its_connection(root: Path, mock_clock: MockClock) -> None:
    async with running(root) as broker, connected(broker_port(broker)) as wire:
        broker.topics.put(TopicConfig(topic_name="T"))
        await hold_pull(broker, wire)
        assert await wire.works()
        await wire.send(request(SEND, send_fields(), opaque=6))
        assert {(await wire.next()).opaque, (await wire.next()).opaque} == {5, 6}


@pytest.mark.parametrize("is_member", [False, True])
async def test_only_lost_member_connections_are_logged(
    root: Path, mock_clock: MockClock, caplog: pytest.LogCaptureFixture, is_member: bool
) -> None:
    async with running(root) as broker:
        caplog.set_level(logging.INFO, "triomq.broker")
        async with connected(namesrv_port(broker)) as probe, connected(broker_port(broker)) as client:
            await probe.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
            if is_member:
                await client.send(request(RequestCode.HEART_BEAT, {}, heartbeat("client")))
                await until(lambda: any(each.version for each in broker.connections))
            else:
                await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        await until(lambda: not broker.connections)
        closed = [message for message in caplog.messages if "closed" in message]
        assert len(closed) == is_member
        if not is_member:
            assert not caplog.messages


async def test_the_pulls_of_a_closed_connection_are_dropped(root: Path, mock_clock: MockClock) -> None:
    async with running(root) as broker, connected(broker_port(broker)) as producer:
        broker.topics.put(TopicConfig(topic_name="T"))
        async with connected(broker_port(broker)) as consumer:
            await hold_pull(broker, consumer)
        await until(lambda: len(broker.connections) == 1)
        await producer.put("T")
        assert broker.pulls.hold.held == 0
        assert broker.statistics.get_messages == 0


# --- leaving ------------------------------------------------------------------------------------------------


async def tick(clock: MockClock) -> None:
    """Let one second pass, as housekeeping counts it."""
    await wait_all_tasks_blocked()
    clock.jump(1)
    await wait_all_tasks_blocked()


async def test_only_an_idle_connection_is_closed(root: Path, mock_clock: MockClock) -> None:
    async with (
        running(root, idle_timeout_s=3) as broker,
        connected(broker_port(broker)) as idle,
        connected(broker_port(broker)) as busy,
    ):
        assert await idle.works()
        while not broker.statistics.idle_closed:
            assert await busy.works()
            await tick(mock_clock)
        assert await idle.is_closed_by_broker()
        assert await busy.works()
        assert broker.statistics.idle_closed == 1


async def test_a_member_that_sends_no_heartbeats_is_removed(root: Path, mock_clock: MockClock) -> None:
    """C.2 scenario 33."""
    async with (
        running(root, client_timeout_s=0.001) as broker,
        connected(broker_port(broker)) as silent,
        connected(broker_port(broker)) as other,
    ):
        await silent.send(request(RequestCode.HEART_BEAT, body=heartbeat("c1")))
        await silent.next()
        await silent.next()
        while broker.groups.consumers.get("G") is not None:
            assert await other.works()
            await tick(mock_clock)
        assert await silent.is_closed_by_broker()
        assert await other.works()


async def test_slow_reader_is_paused_then_closed(root: Path, mock_clock: MockClock) -> None:
    limit, one_answer = 1024**2, 262_144 + 1000
    async with running(root, unread_high_bytes=limit, unread_timeout_s=30) as broker:
        async with connected(broker_port(broker)) as other, connected(broker_port(broker)) as deaf:
            for _ in range(20):
                await other.put("T", bytes(100_000))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send_for_ever, deaf, request(PULL, pull_fields()) * 1000)
                await until(lambda: any(each.unread_bytes > limit // 2 for each in broker.connections))
                (connection,) = (each for each in broker.connections if each.unread_bytes)
                await wait_all_tasks_blocked()  # also the sender: the broker reads no more requests
                answers = broker.statistics.get_messages
                assert connection.unread_bytes <= limit + one_answer
                assert await other.works()
                assert broker.statistics.get_messages == answers
                mock_clock.jump(31)
                await until(lambda: connection.closed)
            assert await other.works()
        assert broker.statistics.stalled_peers == 1


async def test_held_pulls_use_no_memory_for_slow_reader(root: Path, mock_clock: MockClock) -> None:
    limit, body_bytes, pulls = 1024**2, 60_000, 500
    async with running(root, unread_high_bytes=limit) as broker:
        async with connected(broker_port(broker)) as other, connected(broker_port(broker)) as deaf:
            await other.put("T", b"first")
            await deaf.send(request(PULL, pull_fields(queue_offset=1, **HOLD)) * pulls)
            await until(lambda: broker.pulls.hold.held == pulls)
            await other.put("T", bytes(body_bytes))
            await until(lambda: broker.pulls.hold.held == 0)
            assert max(each.unread_bytes for each in broker.connections) <= limit + body_bytes + pulls * 400
            answers = [await deaf.next() for _ in range(pulls)]
            codes = [answer.code for answer in answers]
            assert set(codes) == {ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY}
            assert {answer.ext_fields["nextBeginOffset"] for answer in answers if not answer.body} == {"1"}
            assert len((await deaf.ask(PULL, pull_fields(queue_offset=1))).body) > body_bytes


async def send_for_ever(wire: Wire, data: bytes) -> None:
    """Send until the connection ends."""
    with contextlib.suppress(trio.BrokenResourceError):
        while True:
            await wire.send(data)


async def test_unexpected_error_closes_one_connection(
    root: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    serve = Connection.serve

    def failing(self: Connection, command: RemotingCommand, arrived_at: float) -> None:
        if command.code == 9999:
            raise RuntimeError("a bug")
        serve(self, command, arrived_at)

    monkeypatch.setattr(Connection, "serve", failing)
    async with running(root) as broker, connected(broker_port(broker)) as wire, connected(broker_port(broker)) as bad:
        await bad.send(request(9999, {}))
        assert await bad.is_closed_by_broker()
        assert await wire.works()
        assert "reason=RuntimeError: a bug" in caplog.text


@pytest.mark.parametrize("are_steps_short", [False, True])
async def test_oversized_response_is_replaced_by_an_error_response(
    root: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch, are_steps_short: bool
) -> None:
    async with running(root) as broker, connected(broker_port(broker)) as wire:
        if are_steps_short:  # a separate task answers it
            make_steps_short(broker)
            mock_clock.rate = 100
        with monkeypatch.context() as patch:
            patch.setattr("triomq.protocol.wire.frame._MAX_LENGTH", 4096)
            response = await wire.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "BenchmarkTest"})
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert (response.remark or "").startswith("the answer cannot be sent: frame of ")
        assert broker.statistics.failed_requests == 1
        assert await wire.works()


async def test_requests_sent_before_peer_close_are_processed(
    root: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Go's client commits its last offsets like that: with an answer wanted, and the socket closed at once."""
    monkeypatch.setattr("triomq.broker.network.connection._READ_BYTES", 512)  # so that many reads are needed
    queues = 40
    offsets = {"consumerGroup": "G", "topic": "T", "commitOffset": 7}
    frames = b"".join(
        request(RequestCode.UPDATE_CONSUMER_OFFSET, {**offsets, "queueId": queue_id}) for queue_id in range(queues)
    )
    async with running(root) as broker:
        broker.topics.ensure("T", queues)
        async with connected(broker_port(broker)) as wire:
            await wire.send(request(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}))
            await wait_all_tasks_blocked()  # an answer lies there unread: closing now refuses all further ones
            assert await wire.stream.socket.send(frames) == len(frames)
        await until(lambda: not broker.connections)
        assert [broker.groups.offsets.query("G", "T", queue_id) for queue_id in (0, 1, queues - 1)] == [7, 7, 7]
