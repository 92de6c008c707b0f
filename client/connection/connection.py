"""One connection to a broker or name server: many requests at once, matched to their answers by opaque.

Rules: a waiter is completed at most once, by its answer, its deadline, its caller's cancellation or the end
of the connection; frames are written whole or not at all; nothing here grows without bound.

Per request there is no cancel scope, event, lock or task, because each costs as much as the request itself
(a scope 6-8 us): a request suspends its task and the reader reschedules it; one timer task watches all
deadlines; frames that are ready in one turn of the scheduler leave in one ``sendmsg``.

Source: wire.md 1.4 and 2.6, behaviour.md B.1.
"""

import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any, Final, NamedTuple

import trio

from triomq.client.config import split_address
from triomq.protocol.codes import CommandFlag, SerializeType
from triomq.protocol.errors import (
    ConfigError,
    ConnectError,
    ConnectionLostError,
    ProtocolError,
    RequestTimeoutError,
)
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame_receiver import FrameReceiver
from triomq.protocol.wire.write_queue import WriteQueue

LOGGER: Final = logging.getLogger("triomq.client.connection.connection")

#: The timer does not wake more often than this, however many deadlines there are.
_TIMER_STEP_S: Final = 0.02
#: A connection on which requests time out, and nothing at all comes for so long, leads nowhere: a host that lost its
#: power or a firewall that forgot the connection says no word, and the kernel tries for 15 minutes.
_SILENCE_LIMIT_S: Final = 10.0
_RESPONSE: Final = int(CommandFlag.RESPONSE)
_JSON: Final = int(SerializeType.JSON)
_ABORTED: Final = trio.lowlevel.Abort.SUCCEEDED

RequestHandler = Callable[["Connection", RemotingCommand], None]


class ConnectionStatistics(NamedTuple):
    """What a connection does right now."""

    in_flight: int
    unsent_bytes: int
    unmatched: int  # answers that nobody waits for (any more)


class _Waiter:
    """A task that waits for an answer; when it runs again ``response`` or ``error`` is set."""

    __slots__ = ("deadline", "error", "response", "task")

    def __init__(self, task: trio.lowlevel.Task, deadline: float) -> None:
        self.task = task
        self.deadline = deadline
        self.response: RemotingCommand | None = None
        self.error: Exception | None = None


async def dial(address: str, timeout_s: float, hint: str = "") -> socket.socket:
    """Connect to ``host:port``, trying all addresses of the host; return a non-blocking socket.

    Raises:
        ConnectError: refused, unreachable, unknown host or too slow; ``hint`` ends the text.
    """
    reason = f"no connection within {timeout_s:g} s"
    with trio.move_on_after(timeout_s):
        try:
            stream = await trio.open_tcp_stream(*split_address(address))
        except OSError as exc:
            reason = _connect_reason(exc)
        except (ConfigError, UnicodeError) as exc:  # the latter: what no host can be called
            reason = str(exc)
        else:
            sock = socket.socket(fileno=stream.socket.detach())
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
    raise ConnectError(f"cannot connect to {address}: {reason}{'; ' if hint else ''}{hint}")


def _connect_reason(exc: OSError) -> str:
    causes = exc.__cause__.exceptions if isinstance(exc.__cause__, BaseExceptionGroup) else (exc,)
    return ", ".join(dict.fromkeys(map(_text_of, causes)))


def _text_of(cause: BaseException) -> str:
    if isinstance(cause, OSError) and cause.errno is not None and not isinstance(cause, socket.gaierror):
        return os.strerror(cause.errno)  # trio's own text repeats the address
    return getattr(cause, "strerror", None) or str(cause)


class Connection:
    """Requests and answers over one socket; usable from the moment it is made until :meth:`run` ends.

    Attributes:
        address: the peer as ``host:port``, as it was dialled.
        closed: why it was closed, "" while it is open.
        header_format: number of the :class:`SerializeType` that requests to this peer are written in.
    """

    __slots__ = (
        "_answered",
        "_idle_timeout_s",
        "_last_activity",
        "_limit_bytes",
        "_next_deadline",
        "_on_request",
        "_queue",
        "_receiver",
        "_room",
        "_scope",
        "_silent_since",
        "_socket",
        "_timer_scope",
        "_unmatched",
        "_waiters",
        "_writer",
        "address",
        "closed",
        "header_format",
    )

    def __init__(
        self,
        sock: socket.socket,
        address: str,
        on_request: RequestHandler,
        *,
        max_frame_bytes: int,
        send_buffer_limit_bytes: int,
        idle_timeout_s: float,
        header_format: int = _JSON,
    ) -> None:
        """Take a connected non-blocking socket; ``on_request`` gets the peer's requests and must not block."""
        self.address = address
        self.closed = ""
        self.header_format = header_format
        self._socket = sock
        self._on_request = on_request
        self._receiver = FrameReceiver(max_frame_bytes)
        self._limit_bytes = send_buffer_limit_bytes
        self._idle_timeout_s = idle_timeout_s
        self._waiters: dict[int, _Waiter] = {}
        self._queue = WriteQueue()
        self._room = trio.lowlevel.ParkingLot()
        self._writer: trio.lowlevel.Task | None = None  # the write task while it has nothing to do
        self._scope = trio.CancelScope()
        self._timer_scope = trio.CancelScope()
        self._next_deadline = inf
        self._last_activity = trio.current_time()
        self._silent_since = inf  # when a request timed out, and nothing came since
        self._unmatched = 0
        self._answered = False

    def statistics(self) -> ConnectionStatistics:
        """Return what it does right now."""
        return ConnectionStatistics(len(self._waiters), self._queue.pending_bytes, self._unmatched)

    async def run(self) -> None:
        """Read, write and watch deadlines until the connection ends and all who wait have got their error."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._watch)
                    await self._read()
        finally:
            self.close("the client was closed")
            self._socket.close()

    def close(self, reason: str) -> None:
        """End the connection; all requests that wait fail with :class:`ConnectionLostError`."""
        if self.closed:
            return
        self.closed = reason
        self._queue.clear()
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters.values():
            waiter.error = self._lost()
            trio.lowlevel.reschedule(waiter.task)
        self._room.unpark_all()
        self._scope.cancel()

    async def request(
        self, opaque: int, frame: bytes, deadline: float, body: bytes | memoryview = b""
    ) -> RemotingCommand:
        """Send a request and return its answer, whatever its code.

        Cancelling forgets the answer; the request may have been sent.

        Args:
            opaque: the number in the frame; not in use by another request of this connection.
            frame: all of the frame, or what stands before ``body``.
            deadline: of the answer, on trio's clock.
            body: sent right after ``frame``, not copied.

        Raises:
            RequestTimeoutError: no answer until the deadline.
            ConnectionLostError: the connection ended before the answer came.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._queue.pending_bytes > self._limit_bytes:
            await self._wait_for_room(deadline)
        if self.closed:
            raise self._lost()
        waiters = self._waiters
        waiter = _Waiter(trio.lowlevel.current_task(), deadline)
        if deadline < self._next_deadline:
            self._next_deadline = deadline
            self._timer_scope.deadline = deadline
        at_once = not waiters
        waiters[opaque] = waiter
        self._put(frame, body, at_once)

        def forget(_raise_cancel: Any) -> trio.lowlevel.Abort:
            del waiters[opaque]
            return _ABORTED

        await trio.lowlevel.wait_task_rescheduled(forget)
        response = waiter.response
        if response is None:
            raise waiter.error or self._lost()
        return response

    async def send(self, frame: bytes, deadline: float = inf) -> None:
        """Send a frame that has no answer; returns as soon as the write buffer took it.

        Raises:
            RequestTimeoutError: the buffer stayed full until the deadline.
            ConnectionLostError: the connection is closed.
        """
        await trio.lowlevel.checkpoint()
        if self._queue.pending_bytes > self._limit_bytes:
            await self._wait_for_room(deadline)
        if self.closed:
            raise self._lost()
        self._last_activity = trio.current_time()
        self._put(frame, b"", not self._waiters)

    def post(self, frame: bytes) -> None:
        """Queue an answer to a request of the peer, without waiting; dropped if the connection is closed."""
        if not self.closed:
            self._put(frame, b"", at_once=False)

    def _put(self, frame: bytes, body: bytes | memoryview, at_once: bool) -> None:
        """Write now if nothing else is going on, else leave it to the write task, which takes all at once."""
        queue = self._queue
        if at_once and not queue and not body:
            try:
                sent = self._socket.send(frame)
            except OSError:  # full, or broken: the write task meets it again and deals with it
                sent = 0
            if sent == len(frame):
                return
            queue.put(memoryview(frame)[sent:] if sent else frame)
        else:
            queue.put(frame)
            queue.put(body)
        writer = self._writer
        if writer is not None:
            self._writer = None
            trio.lowlevel.reschedule(writer)

    async def _write(self) -> None:
        queue = self._queue
        try:
            while True:
                if queue:
                    await trio.lowlevel.wait_writable(self._socket)
                else:
                    self._writer = trio.lowlevel.current_task()
                    await trio.lowlevel.wait_task_rescheduled(self._forget_writer)
                with suppress(BlockingIOError):
                    queue.written(self._socket.sendmsg(queue.chunks()))
                if self._room and queue.pending_bytes <= self._limit_bytes:
                    self._room.unpark_all()
        except OSError as exc:
            self.close(f"writing failed: {exc.strerror or exc}")

    def _forget_writer(self, _raise_cancel: Any) -> trio.lowlevel.Abort:
        self._writer = None
        return _ABORTED

    async def _wait_for_room(self, deadline: float) -> None:
        with trio.move_on_at(deadline):
            while self._queue.pending_bytes > self._limit_bytes:
                await self._room.park()
            return
        raise RequestTimeoutError(
            f"{self.address} does not read: {self._queue.pending_bytes} bytes wait to be sent already"
        )

    async def _read(self) -> None:
        sock, receiver = self._socket, self._receiver
        try:
            while True:
                await trio.lowlevel.wait_readable(sock)
                try:
                    count = sock.recv_into(receiver.room())
                except BlockingIOError:
                    continue
                if not count:
                    self.close(self._end_of_stream())
                    return
                self._last_activity = trio.current_time()
                self._silent_since = inf
                self._receive(count)
        except OSError as exc:
            self.close(f"reading failed: {exc.strerror or exc}")
        except ProtocolError as exc:
            if not self._waiters:  # else their errors tell it
                LOGGER.warning("connection closed peer=%s error=%s", self.address, exc)
            self.close(str(exc))

    def _receive(self, count: int) -> None:
        frames, error = self._receiver.received(count)
        waiters = self._waiters
        for frame in frames:
            command = RemotingCommand.decode(frame)
            if command.flag & _RESPONSE:
                waiter = waiters.pop(command.opaque, None)
                if waiter is None:
                    self._unmatched += 1
                else:
                    waiter.response = command
                    trio.lowlevel.reschedule(waiter.task)
            else:
                self._on_request(self, command)
        if frames:
            self._answered = True
        if error is not None:
            raise error

    def _end_of_stream(self) -> str:
        if self._answered:
            return "the peer closed it"
        return "the peer closed it without an answer (is this the port of a RocketMQ broker or name server?)"

    def _lost(self) -> ConnectionLostError:
        return ConnectionLostError(f"connection to {self.address} lost: {self.closed}")

    async def _watch(self) -> None:
        """Wake at the earliest deadline, which :meth:`request` brings forward if need be."""
        while not self.closed:
            now = trio.current_time()
            due = self._expire(now)
            if due <= now:
                self.close(f"idle for {self._idle_timeout_s:g} s")
                return
            self._next_deadline = max(due, now + _TIMER_STEP_S)
            with trio.CancelScope(deadline=self._next_deadline) as self._timer_scope:
                await trio.sleep_forever()

    def _expire(self, now: float) -> float:
        """Fail who waited too long; return when to look again, ``now`` or before: the connection is idle."""
        waiters = self._waiters
        late = [opaque for opaque, waiter in waiters.items() if waiter.deadline <= now]
        for opaque in late:
            waiter = waiters.pop(opaque)
            waiter.error = RequestTimeoutError(
                f"no answer from {self.address} in time; whether it did the request is unknown"
            )
            trio.lowlevel.reschedule(waiter.task)
        if late:
            self._silent_since = min(self._silent_since, now)
            silent_s = now - self._silent_since
            if silent_s >= _SILENCE_LIMIT_S:
                self.close(f"requests have timed out for {silent_s:.0f} s, and nothing came meanwhile")
                return inf
        if waiters:
            return min(waiter.deadline for waiter in waiters.values())
        if late:
            return now + self._idle_timeout_s
        return self._last_activity + self._idle_timeout_s
