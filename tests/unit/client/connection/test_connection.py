import socket
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.fake_broker import CancelledAtEveryAwait
from triomq.client.config import ClientConfig
from triomq.client.connection.connection import ClientConnection
from triomq.protocol.errors import ConnectionLostError, RequestTimeoutError, TriomqError
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import FrameSplitter

LIMIT = 64 * 1024
IDLE_S = 120.0
PROBE = RemotingCommand(34, opaque=2**30)


class Peer:
    """The other end of a connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self._splitter = FrameSplitter()
        self._commands: list[RemotingCommand] = []

    async def next_command(self) -> RemotingCommand:
        while not self._commands:
            data = await self.stream.receive_some()
            assert data, "the client closed the connection"
            frames, error = self._splitter.split(data)
            assert error is None
            self._commands += map(RemotingCommand.decode, frames)
        return self._commands.pop(0)

    async def answer(self, *commands: RemotingCommand) -> None:
        await self.stream.send_all(
            b"".join(command.reply(body=b"%d" % command.opaque).encode() for command in commands)
        )


class Pair:
    """A connection with its peer; requests of the peer are collected."""

    def __init__(self, sockets: Callable[[], tuple[socket.socket, socket.socket]] = socket.socketpair) -> None:
        ours, theirs = sockets()
        ours.setblocking(False)
        theirs.setblocking(False)
        for sock in (ours, theirs):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
        self.asked: list[RemotingCommand] = []
        self.peer = Peer(theirs)
        self.connection = ClientConnection(
            ours,
            "broker:10911",
            ClientConfig(send_buffer_limit_bytes=LIMIT, idle_timeout_s=IDLE_S),
            lambda _connection, command: self.asked.append(command),
            self._probe,
        )
        self.probes: list[float] = []
        self._opaque = 0

    @property
    def in_flight(self) -> int:
        return len(self.connection._waiters)

    @property
    def unsent_bytes(self) -> int:
        return self.connection._queue.pending_bytes

    def _probe(self, connection: ClientConnection) -> None:
        self.probes.append(trio.current_time())
        connection.post(PROBE.encode())

    async def request(self, timeout_s: float = 3.0, body: bytes = b"", silence_s: float = 0) -> RemotingCommand:
        self._opaque += 1
        frame = RemotingCommand(10, self._opaque, body=body).encode()
        deadline = trio.current_time() + timeout_s
        return await self.connection.request(self._opaque, frame, deadline, silence_s=silence_s)

    def start(self, nursery: trio.Nursery, *arguments: Any, count: int = 1) -> list[Any]:
        """Start requests; return a list that gets their answers or errors."""
        results: list[Any] = []
        for _ in range(count):
            nursery.start_soon(collect, results, self.request, *arguments)
        return results


@pytest.fixture
async def pair(nursery: trio.Nursery) -> AsyncGenerator[Pair, None]:
    made = Pair()
    nursery.start_soon(made.connection.run)
    yield made
    await made.peer.stream.aclose()


async def collect(into: list[Any], function: Callable[..., Any], *arguments: Any) -> None:
    try:
        into.append(await function(*arguments))
    except TriomqError as exc:
        into.append(exc)


async def test_responses_match_their_requests_in_any_order(pair: Pair, nursery: trio.Nursery) -> None:
    bodies: dict[bytes, bytes] = {}

    async def request(body: bytes) -> None:
        bodies[body] = bytes((await pair.request(body=body)).body)

    for name in (b"a", b"b", b"c"):
        nursery.start_soon(request, name)
    requests = [await pair.peer.next_command() for _ in range(3)]
    for command in reversed(requests):
        answer = command.reply(body=b"for " + command.body).encode()
        await pair.peer.stream.send_all(2 * answer)  # the second has no waiter
        await wait_all_tasks_blocked()

    assert bodies == {b"a": b"for a", b"b": b"for b", b"c": b"for c"}
    assert list(bodies) == [command.body for command in reversed(requests)]
    assert not pair.in_flight
    assert not pair.connection.closed


@pytest.mark.parametrize("answered", [0, 1])
async def test_end_of_connection_fails_all_waiters(pair: Pair, nursery: trio.Nursery, answered: int) -> None:
    results = pair.start(nursery, count=3)
    requests = [await pair.peer.next_command() for _ in range(3)]
    await pair.peer.answer(*requests[:answered])
    await wait_all_tasks_blocked()

    await pair.peer.stream.aclose()
    await wait_all_tasks_blocked()

    assert [type(result) for result in results[answered:]] == [ConnectionLostError] * (3 - answered)
    assert "broker:10911 lost: the peer closed it" in str(results[1])
    assert ("is this the port of a RocketMQ broker" in str(results[1])) is not bool(answered)
    assert results[1] is not results[2]
    with pytest.raises(ConnectionLostError):
        await pair.request()
    with pytest.raises(ConnectionLostError):
        await pair.connection.send(b"frame")
    pair.connection.post(b"frame")
    assert not pair.unsent_bytes


async def test_a_request_times_out_at_its_own_deadline(
    pair: Pair, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    ended: dict[float, float] = {}

    async def request(timeout_s: float) -> None:
        with pytest.raises(RequestTimeoutError, match="broker:10911"):
            await pair.request(timeout_s)
        ended[timeout_s] = trio.current_time()

    async with trio.open_nursery() as requests:
        for timeout_s in (9.0, 3.0, 1.0, 8.0):
            requests.start_soon(request, timeout_s)

    assert list(ended) == [1.0, 3.0, 8.0, 9.0]
    assert all(0 <= at - timeout_s < 0.1 for timeout_s, at in ended.items())
    assert not pair.connection.closed


async def test_a_silent_connection_is_probed_and_then_closed(
    pair: Pair, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    results: list[Any] = []
    await trio.sleep(60)
    start = trio.current_time()
    await collect(results, pair.request, 1000.0)  # a long pull
    assert 10 <= trio.current_time() - start < 15
    assert [at - start < 10 for at in pair.probes] == [True]
    assert pair.connection.closed == "answers are due, and nothing has arrived for 10 s"
    assert type(results[0]) is ConnectionLostError


async def test_silence_counts_from_the_last_byte_received(
    pair: Pair, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    results = pair.start(nursery, 1000.0)
    for _ in range(20):
        await trio.sleep(3)
        await pair.peer.answer(RemotingCommand(10, opaque=-1))
    assert not results
    assert not pair.probes
    await trio.sleep(10.5)
    assert [type(result) for result in results] == [ConnectionLostError]


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["timed out", "cancelled"])
async def test_silence_after_abandoned_request_closes_connection(
    pair: Pair, autojump_clock: MockClock, is_cancelled: bool
) -> None:
    with pytest.raises((RequestTimeoutError, trio.TooSlowError)), trio.fail_after(1 if is_cancelled else 9):
        await pair.request(3.0)
    await trio.sleep(15)
    assert "nothing has arrived" in pair.connection.closed


async def test_stall_of_this_process_is_no_silence(pair: Pair, mock_clock: MockClock, nursery: trio.Nursery) -> None:
    pair.start(nursery, 1000.0)
    await wait_all_tasks_blocked()
    for seconds in (*[0.5] * 16, 60, *[0.5] * 12):
        mock_clock.jump(seconds)
        await wait_all_tasks_blocked()
    assert len(pair.probes) == 2
    assert not pair.connection.closed


async def test_a_slow_upload_is_not_silence(pair: Pair, autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    pair.start(nursery, 1000.0, b"x" * 400_000)
    received = 0
    while received < 400_000:
        await trio.sleep(3)
        received += len(await pair.peer.stream.receive_some(20_000))
    assert not pair.connection.closed


@pytest.mark.parametrize("heard_after_s", [0.0, 0.3, 1.2])
async def test_silence_of_the_peer_ends_a_request(
    pair: Pair, autojump_clock: MockClock, nursery: trio.Nursery, heard_after_s: float
) -> None:
    """However much arrived before that, and although the connection was idle before."""
    await trio.sleep(60)
    results: list[Any] = []
    start = trio.current_time()
    nursery.start_soon(collect, results, pair.request, 100.0)
    for _ in range(3):
        nursery.start_soon(collect, results, pair.request, 100.0, b"", 1.0)
    while trio.current_time() < start + heard_after_s:
        await trio.sleep(0.1)
        await pair.peer.answer(RemotingCommand(10, opaque=-1))
    await trio.sleep(0.97)
    assert not results
    await trio.sleep(0.1)
    assert [type(result) for result in results] == [RequestTimeoutError] * 3
    assert len(pair.probes) == 1
    assert pair.in_flight == 1


async def test_answer_during_a_stall_of_this_process_counts(
    pair: Pair, mock_clock: MockClock, nursery: trio.Nursery
) -> None:
    """Timer and reader run in either order then."""
    for _ in range(10):
        results: list[Any] = []
        nursery.start_soon(collect, results, pair.request, 100.0, b"", 1.0)
        request = await pair.peer.next_command()
        mock_clock.jump(0.55)  # it is probed
        assert (await pair.peer.next_command()).code == PROBE.code
        pair.peer.socket.send(request.reply().encode())
        mock_clock.jump(2)
        await wait_all_tasks_blocked()
        assert [type(result) for result in results] == [RemotingCommand]


async def test_an_unused_connection_is_closed(pair: Pair, autojump_clock: MockClock) -> None:
    await trio.sleep(IDLE_S - 1)
    still_open = not pair.connection.closed
    await trio.sleep(2)
    assert still_open
    assert pair.connection.closed.startswith("idle for 120 s")
    assert not pair.probes


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    return ours, theirs


async def drain(peer: Peer) -> tuple[int, bool]:
    """Read until the end; return how many bytes came, and whether it was a reset."""
    count = 0
    try:
        async for data in peer.stream:
            count += len(data)
    except trio.BrokenResourceError:
        return count, True
    return count, False


async def test_abandoned_connection_is_reset_to_discard_buffers(autojump_clock: MockClock) -> None:
    pair = Pair(tcp_pair)
    pair.peer.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    results: list[Any] = []
    sent = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.connection.run)
        while pair.unsent_bytes < LIMIT:  # the kernel's buffers are full
            await pair.connection.send(bytes(1000))
            await wait_all_tasks_blocked()
            sent += 1000
        nursery.start_soon(collect, results, pair.request, 1000.0)
    assert "nothing has arrived" in pair.connection.closed
    received, is_reset = await drain(pair.peer)
    assert is_reset
    assert received < sent - LIMIT
    await pair.peer.stream.aclose()


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["pending", "cancelled"])
async def test_connection_closed_with_pending_request_is_reset(is_cancelled: bool) -> None:
    pair = Pair(tcp_pair)
    results: list[Any] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.connection.run)
        async with trio.open_nursery() as callers:
            callers.start_soon(collect, results, pair.request)
            await pair.peer.next_command()
            if not is_cancelled:
                pair.connection.close("over")
            callers.cancel_scope.cancel()
        pair.connection.close("over")
    assert await drain(pair.peer) == (0, True)
    await pair.peer.stream.aclose()


async def test_callers_wait_while_the_write_buffer_is_full(pair: Pair, nursery: trio.Nursery) -> None:
    results: list[Any] = []
    body = b"x" * (LIMIT // 2)
    for _ in range(20):
        nursery.start_soon(collect, results, pair.request, 60.0, body)
    await wait_all_tasks_blocked()
    unsent = pair.unsent_bytes
    assert LIMIT < unsent <= LIMIT + len(body) + 1000

    for _ in range(20):
        command = await pair.peer.next_command()
        assert command.body == body
        await pair.peer.answer(command)
        assert pair.unsent_bytes <= LIMIT + len(body) + 1000
    await wait_all_tasks_blocked()
    assert len(results) == 20
    assert all(result.code == 0 for result in results)


async def test_send_timeout_reports_peer_that_does_not_read(
    pair: Pair, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    pair.start(nursery, 60.0, b"x" * 8 * LIMIT)
    await wait_all_tasks_blocked()
    with pytest.raises(RequestTimeoutError, match="does not read"):
        await pair.request(1.0)
    with pytest.raises(RequestTimeoutError, match="does not read"):
        await pair.connection.send(b"frame", trio.current_time() + 1.0)
    assert pair.in_flight == 1

    results = pair.start(nursery)
    await wait_all_tasks_blocked()
    pair.connection.close("enough")
    await wait_all_tasks_blocked()
    assert [str(result) for result in results] == ["connection to broker:10911 lost: enough"]


async def test_frame_and_body_arrive_whole_among_others(pair: Pair, nursery: trio.Nursery) -> None:
    body = bytes(range(256)) * 4096
    results: list[Any] = []

    async def request_in_parts() -> RemotingCommand:
        command = RemotingCommand(10, 1000)
        return await pair.connection.request(1000, command.encode_prefix(len(body)), trio.current_time() + 60, body)

    nursery.start_soon(collect, results, pair.request)
    nursery.start_soon(collect, results, request_in_parts)
    nursery.start_soon(collect, results, pair.request)
    received = {command.opaque: command for command in [await pair.peer.next_command() for _ in range(3)]}

    assert received.keys() == {1, 2, 1000}
    assert received[1000].body == body


@pytest.mark.parametrize("is_pending", [False, True])
@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP server"), (b"\0\0\0\6\x00\x00\x00\x02{]", "header")],
)
async def test_invalid_frame_closes_connection_with_reason(
    pair: Pair, nursery: trio.Nursery, data: bytes, reason: str, is_pending: bool, caplog: pytest.LogCaptureFixture
) -> None:
    results = pair.start(nursery, count=int(is_pending))
    await wait_all_tasks_blocked()
    await pair.peer.stream.send_all(data)
    await wait_all_tasks_blocked()
    assert [type(result) for result in results] == [ConnectionLostError] * is_pending
    assert reason in pair.connection.closed
    assert ("connection closed peer=broker:10911" in caplog.text) is not is_pending  # else the error says it


async def test_answers_before_garbage_in_one_read_count(pair: Pair, nursery: trio.Nursery) -> None:
    results = pair.start(nursery)
    request = await pair.peer.next_command()

    await pair.peer.stream.send_all(request.reply().encode() + b"\xff\xff\xff\xff")
    await wait_all_tasks_blocked()

    assert isinstance(results[0], RemotingCommand)
    assert pair.connection.closed


async def test_a_broken_socket_is_noticed_by_the_writer(pair: Pair, nursery: trio.Nursery) -> None:
    results: list[Any] = []
    pair.peer.stream.socket.shutdown(socket.SHUT_RD)

    nursery.start_soon(collect, results, pair.request)
    await wait_all_tasks_blocked()

    assert "writing failed: Broken pipe" in str(results[0])


async def test_wakeup_without_data_changes_nothing(pair: Pair) -> None:
    pair.connection._receive_some()
    assert not pair.connection.closed


async def test_a_request_may_be_cancelled_at_every_await(
    pair: Pair, nursery: trio.Nursery, cancelled_at_every_await: CancelledAtEveryAwait
) -> None:
    async def answer_all() -> None:
        while True:
            await pair.peer.answer(await pair.peer.next_command())

    nursery.start_soon(answer_all)
    async for _ in cancelled_at_every_await(pair.request):
        assert pair.in_flight == 0
    assert (await pair.request()).code == 0
