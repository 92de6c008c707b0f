"""One connection to a broker or name server: many requests at once, matched to their answers by opaque.

Rules: a waiter is completed at most once, by its answer, its deadline, its caller's cancellation or the end
of the connection; frames are written whole or not at all; nothing here grows without bound.

A request has no cancel scope, event, lock or task, because each costs as much as the request itself
(a scope 6-8 us): a request suspends its task and the reader reschedules it; one timer task watches all
deadlines; frames that are ready in one turn of the scheduler leave in one ``sendmsg``.

A connection that is given up is reset, not closed: the kernel would still deliver its buffered data, and a
send or a one-way commit could arrive half a minute later, behind newer ones.

Source: wire.md 1.4 and 2.6, behaviour.md B.1.
"""

import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from math import inf
from struct import Struct
from typing import Any, Final

import trio

from triomq.client.config import ClientConfig
from triomq.client.connection.tls import ClientTlsSocket
from triomq.protocol.codes import CommandFlag
from triomq.protocol.errors import ConnectionLostError, ProtocolError, RequestTimeoutError
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import FrameReceiver
from triomq.protocol.wire.header_formats import first_format
from triomq.protocol.wire.write_queue import WriteQueue

LOGGER: Final = logging.getLogger("triomq.client.connection.connection")

#: The timer does not wake more often than this, however many deadlines there are.
_TIMER_STEP_S: Final = 0.02
#: A host may lose power and a firewall may drop connections silently; the kernel retries for 15 minutes.  If answers
#: are due and nothing arrives for this long, the peer is probed, since it may be holding long pulls.
_PROBE_AFTER_S: Final = 5.0
#: If nothing arrives for this long after the probe, the connection is dead.
_PROBE_TIMEOUT_S: Final = 5.0
#: How often to look whether answers are due.  These three together keep the time until then below 15 s.
_LOOK_S: Final = 2.5
#: If the timer runs this late, this process was stopped or busy, and the silence proves nothing.
_STALL_S: Final = 1.0
#: If the timer looks this late, this process was busy, and what arrived meanwhile may still be unread ...
_LATE_S: Final = 0.1
#: ... but is read by then.
_READ_S: Final = 0.02
_RESPONSE: Final = int(CommandFlag.RESPONSE)
_ABORTED: Final = trio.lowlevel.Abort.SUCCEEDED
_RESET_ON_CLOSE: Final = Struct("ii").pack(1, 0)  # struct linger: on, 0 s

RequestHandler = Callable[["ClientConnection", RemotingCommand], None]


class Waiter:
    """A task that waits for an answer; when it runs again ``response`` or ``error`` is set.

    Attributes:
        deadline: when to look at it next; if that is not put off then, the request has timed out.
    """

    __slots__ = ("_limit", "_silence_s", "deadline", "error", "response", "task")

    def __init__(self, task: trio.lowlevel.Task, deadline: float, silence_s: float) -> None:
        """Take the latest time of the answer, and the longest silence of the peer until then (0: any)."""
        self.task = task
        self.response: RemotingCommand | None = None
        self.error: Exception | None = None
        self.deadline = self._limit = deadline
        self._silence_s = silence_s
        if silence_s:
            self.deadline = min(deadline, trio.current_time() + silence_s / 2)

    def put_off(self, now: float, last_heard: float, probed_at: float) -> bool:
        """Put the deadline off unless the time is up or the peer is too silent; return whether to probe the peer.

        The peer is probed in the middle of the silence that is allowed, unless it owes the answer to a probe already.
        """
        if now >= self._limit:
            return False
        if now > self.deadline + _LATE_S:
            self.deadline = now + _READ_S
            return False
        due = last_heard + self._silence_s / 2
        wants_probe = due <= now and probed_at <= last_heard
        if due <= now:
            due = (now if wants_probe else probed_at) + self._silence_s / 2
        self.deadline = min(due, self._limit)
        return wants_probe


class ClientConnection:
    """Requests and answers over one socket; usable from the moment it is made until :meth:`run` ends.

    Attributes:
        address: the peer as ``host:port``, as it was dialled.
        closed: why it was closed, "" while it is open.
        header_format: number of the :class:`SerializeType` that requests to this peer are written in.
        is_broker: whether the groups were announced to the peer as a broker of a route, so that it may send requests.
        has_accounts: whether the peer refused a request because it named no account.
    """

    def __init__(
        self,
        sock: socket.socket | ClientTlsSocket,
        address: str,
        config: ClientConfig,
        on_request: RequestHandler,
        probe: Callable[["ClientConnection"], None],
    ) -> None:
        """Take ownership of a connected non-blocking socket.

        Args:
            sock: the socket.
            address: of the peer.
            config: sizes, the idle timeout and the wanted header format.
            on_request: gets the peer's requests; must not block.
            probe: called when answers are due but nothing arrives: posts a request that the peer answers at once.
                It may do nothing where the peer never holds requests back.
        """
        self.address = address
        self.closed = ""
        self.is_broker = False
        self.header_format = first_format(config.header_format)
        self.has_accounts = False
        self._socket = sock
        self._on_request = on_request
        self._probe = probe
        self._receiver = FrameReceiver(config.max_frame_bytes)
        self._limit_bytes = config.send_buffer_limit_bytes
        self._idle_timeout_s = config.idle_timeout_s
        self._waiters: dict[int, Waiter] = {}
        self._queue = WriteQueue()
        self._room = trio.lowlevel.ParkingLot()
        self._writer: trio.lowlevel.Task | None = None  # the write task while it has nothing to do
        self._scope = trio.CancelScope()
        self._timer_scope = trio.CancelScope()
        self._next_deadline = inf
        self._last_heard = self._last_oneway = trio.current_time()
        self._gave_up = False  # a request was cancelled or timed out, and nothing arrived since
        self._waiting_since = inf  # when the timer first saw that answers were due
        self._probed_at = -inf
        self._reset = False  # reset the connection instead of closing it
        self._answered = False

    async def run(self) -> None:
        """Read, write and watch deadlines until the connection ends and every waiter has its error."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._watch)
                    await self._read()
        finally:
            self.close("the client was closed")
            if self._reset:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._socket.close()

    def close(self, reason: str) -> None:
        """End the connection; pending requests fail with :class:`ConnectionLostError`.

        The peer sees a plain end of stream if everything was answered, and a reset if something was given up.
        """
        if self.closed:
            return
        self.closed = reason
        self._reset = bool(self._waiters or self._queue or self._gave_up)
        self._queue.clear()
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters.values():
            waiter.error = self._lost()
            trio.lowlevel.reschedule(waiter.task)
        self._room.unpark_all()
        self._scope.cancel()

    @property
    def is_full(self) -> bool:
        """Whether so much waits to be written that requests wait: the peer does not read."""
        return self._queue.pending_bytes > self._limit_bytes

    async def request(
        self, opaque: int, frame: bytes, deadline: float, body: bytes | memoryview = b"", silence_s: float = 0.0
    ) -> RemotingCommand:
        """Send a request and return its answer, whatever its code.

        Cancelling forgets the answer; the request may have been sent.

        Args:
            opaque: the number in the frame; not in use by another request of this connection.
            frame: the whole frame, or the part before ``body``.
            deadline: of the answer, on trio's clock.
            body: sent right after ``frame``, not copied.
            silence_s: give up earlier if nothing at all arrives for half of this, and for half of it after a probe;
                0: wait until the deadline.

        Raises:
            RequestTimeoutError: no answer until the deadline, or silence.
            ConnectionLostError: the connection ended before the answer came.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._queue.pending_bytes > self._limit_bytes:
            await self._wait_for_room(min(deadline, trio.current_time() + (silence_s or inf)))
        if self.closed:
            raise self._lost()
        waiters = self._waiters
        waiter = Waiter(trio.lowlevel.current_task(), deadline, silence_s)
        if waiter.deadline < self._next_deadline:
            self._next_deadline = self._timer_scope.deadline = waiter.deadline
        at_once = not waiters
        waiters[opaque] = waiter
        self._put(frame, body, at_once)

        def forget(_raise_cancel: Any) -> trio.lowlevel.Abort:
            del waiters[opaque]
            self._gave_up = True
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
        if self.is_full:
            await self._wait_for_room(deadline)
        if self.closed:
            raise self._lost()
        self._last_oneway = trio.current_time()
        self._put(frame, b"", not self._waiters)

    def post(self, frame: bytes) -> None:
        """Queue a frame without waiting: an answer to the peer, or a probe; dropped if the connection is closed."""
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
        if (writer := self._writer) is not None:
            self._writer = None
            trio.lowlevel.reschedule(writer)

    async def _write(self) -> None:
        queue = self._queue
        blocked = False

        def forget(_raise_cancel: Any) -> trio.lowlevel.Abort:
            self._writer = None
            return _ABORTED

        try:
            while True:
                if queue:
                    await trio.lowlevel.wait_writable(self._socket)
                else:
                    self._writer = trio.lowlevel.current_task()
                    await trio.lowlevel.wait_task_rescheduled(forget)
                with suppress(BlockingIOError):
                    queue.written(self._socket.sendmsg(queue.chunks()))
                    if blocked:  # the kernel's buffer was full and has drained: the peer is there
                        self._last_heard = trio.current_time()
                    blocked = bool(queue)
                if self._room and queue.pending_bytes <= self._limit_bytes:
                    self._room.unpark_all()
        except OSError as exc:
            self.close(f"writing failed: {exc.strerror or exc}")

    async def _wait_for_room(self, deadline: float) -> None:
        with trio.move_on_at(deadline):
            while self.is_full:
                await self._room.park()
            return
        pending_bytes = self._queue.pending_bytes
        raise RequestTimeoutError(f"{self.address} does not read: {pending_bytes} bytes wait to be sent already")

    async def _read(self) -> None:
        sock = self._socket
        try:
            while True:
                await trio.lowlevel.wait_readable(sock)
                self._receive_some()
                while isinstance(sock, ClientTlsSocket) and sock.has_received and not self.closed:
                    self._receive_some()  # more than the last frame had room for
        except OSError as exc:
            self.close(f"reading failed: {exc.strerror or exc}")
        except ProtocolError as exc:
            if not self._waiters:  # else their errors report it
                LOGGER.warning("connection closed peer=%s error=%s", self.address, exc)
            self.close(str(exc))

    def _receive_some(self) -> None:
        try:
            count = self._socket.recv_into(self._receiver.room())
        except BlockingIOError:
            return
        if not count:
            reason = "the peer closed it"
            if not self._answered:
                wants_tls = "" if isinstance(self._socket, ClientTlsSocket) else " Or does it want TLS?"
                reason += f" without an answer (is this the port of a RocketMQ broker or name server?{wants_tls})"
            self.close(reason)
            return
        self._last_heard = trio.current_time()
        self._gave_up = False
        frames, error = self._receiver.received(count)
        waiters = self._waiters
        for frame in frames:
            command = RemotingCommand.decode(frame)
            if command.flag & _RESPONSE:
                waiter = waiters.pop(command.opaque, None)
                if waiter is not None:  # else it was given up, or is the answer to a probe
                    waiter.response = command
                    trio.lowlevel.reschedule(waiter.task)
            else:
                self._on_request(self, command)
        if frames:
            self._answered = True
        if error is not None:
            raise error

    def _lost(self) -> ConnectionLostError:
        return ConnectionLostError(f"connection to {self.address} lost: {self.closed}")

    async def _watch(self) -> None:
        """Wake at the earliest deadline, which :meth:`request` brings forward if need be."""
        while not self.closed:
            now = trio.current_time()
            if now > self._next_deadline + _STALL_S:
                self._waiting_since = now
            due = min(self._expire(now), self._check_silence(now))
            self._next_deadline = max(due, now + _TIMER_STEP_S)
            with trio.CancelScope(deadline=self._next_deadline) as self._timer_scope:
                await trio.sleep_forever()

    def _expire(self, now: float) -> float:
        """Fail the requests whose deadline has passed; return the next deadline."""
        waiters = self._waiters
        for opaque, waiter in [(opaque, waiter) for opaque, waiter in waiters.items() if waiter.deadline <= now]:
            if waiter.put_off(now, self._last_heard, self._probed_at):
                self._probed_at = now
                self._probe(self)
            if waiter.deadline > now:
                continue
            del waiters[opaque]
            text = f"no answer from {self.address} in time; whether it carried out the request is unknown"
            waiter.error = error = RequestTimeoutError(text)
            error.is_logged_once = not self._answered
            trio.lowlevel.reschedule(waiter.task)
            self._gave_up = True
        return min((waiter.deadline for waiter in waiters.values()), default=inf)

    def _check_silence(self, now: float) -> float:
        """Close the connection if it is idle, or probe it and then close it if it is dead; return when to look again.

        It is idle if no answer is due and all is written, and silent if not and nothing arrives.
        """
        if not (self._waiters or self._queue or self._gave_up):
            self._waiting_since = inf
            idle_at = max(self._last_heard, self._last_oneway) + self._idle_timeout_s
            if idle_at <= now:
                self.close(f"idle for {self._idle_timeout_s:g} s")
            return min(idle_at, now + _LOOK_S)
        self._waiting_since = min(self._waiting_since, now)
        silent_since = max(self._waiting_since, self._last_heard)
        if now < silent_since + _PROBE_AFTER_S:
            return silent_since + _PROBE_AFTER_S
        if self._probed_at <= silent_since:
            self._probed_at = now
            self._probe(self)
        elif now >= self._probed_at + _PROBE_TIMEOUT_S:
            self.close(f"answers are due, and nothing has arrived for {now - silent_since:.0f} s")
        return self._probed_at + _PROBE_TIMEOUT_S
