"""A broker in a thread with a separate loop, or in a separate process, and the requests of tests that run there.

Rules: what tests ask are coroutine methods, which :meth:`BrokerHost.call` runs in the broker's thread; arguments and
results can be pickled: a :class:`ProcessHost` is the client, connected by two pipes, of a :class:`BrokerHost` there.
"""

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, TypeVarTuple

import trio
import trio.testing

from triomq.broker import Broker, BrokerConfig, KeptBroker, keep_broker, open_broker
from triomq.broker.network.connection import Connection, Service
from triomq.broker.services.housekeeping import elapsed_ms
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import RefusedError
from triomq.protocol.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_group
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.record import decode_records
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import Frame
from triomq.storage.files.file_system import FileSystem
from triomq.storage.message_store import system_clock_ms
from triomq.storage.reading.cold_read import finish

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SENDS: Final = frozenset((RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE))
"""The requests that store messages of producers."""
_SETTLE_S: Final = 1.0
_STOP_S: Final = 10.0
_MESSAGES_AT_ONCE: Final = 1024


class Group(NamedTuple):
    """A consumer group as the broker sees it.

    Attributes:
        members: client ids of the live ones.
        behind: number of messages without a committed offset after them, by topic.
    """

    members: tuple[str, ...]
    behind: dict[str, int]


class SlowDisk(FileSystem):
    """A disk on which each sync takes longer, in the thread that waits for it.

    Attributes:
        delay_s: how much longer; may be set at any time, in any thread.
    """

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s


def _slowed(name: str) -> Callable[..., None]:
    def sync(disk: SlowDisk, *args: Any) -> None:
        time.sleep(disk.delay_s)
        getattr(super(SlowDisk, disk), name)(*args)

    return sync


for _name in ("sync_file", "sync_directory", "sync_all", "write_file", "overwrite_file"):
    setattr(SlowDisk, _name, _slowed(_name))


class BrokerHost:
    """A broker in a thread of this process.

    Attributes:
        refused: the code of the answer, and those of the requests that it refuses.
        refusals_left: how many it is still to refuse.
    """

    def __init__(self, config: BrokerConfig, sync_delay_s: float, ahead_ms: int) -> None:
        """Prepare it; each sync of its disk takes ``sync_delay_s`` longer, and its clock is ``ahead_ms`` ahead."""
        self._config: Final = config
        self._disk: Final = SlowDisk(sync_delay_s)
        self._ahead_ms = ahead_ms
        self._passed_ms = 0
        self.refused: tuple[int, Collection[int]] = 0, ()
        self.refusals_left = 0
        self._kept: KeptBroker
        self._token: trio.lowlevel.TrioToken
        self._nursery: trio.Nursery
        self._stop = trio.Event()
        self._stall_s = 0.0
        self._ends_stall: Final = threading.Event()
        self._started: Final[Future[tuple[str, str]]] = Future()
        self._failure: BaseException | None = None
        self._thread: Final = threading.Thread(target=self._run, name="triomq-broker", daemon=True)

    def start(self) -> tuple[str, str]:
        """Start the thread; return the addresses of broker and name server.

        Raises:
            TriomqError: as ``triomq.broker.open_broker``.
        """
        self._thread.start()
        return self._started.result()

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as exc:  # noqa: BLE001  # boundary: it belongs to the test's thread
            if self._started.done():
                self._failure = exc
            else:
                self._started.set_exception(exc)

    async def _serve(self) -> None:
        open_one = partial(
            open_broker,
            clock_ms=lambda: system_clock_ms() + self._ahead_ms,
            gate=partial(_Refusing, self),
            file_system=self._disk,
            elapsed_clock_ms=lambda: elapsed_ms() + self._passed_ms,
        )
        async with keep_broker(self._config, open_one) as self._kept:
            async with trio.open_nursery() as self._nursery:
                self._token = trio.lowlevel.current_trio_token()
                broker, namesrv = self._broker.addresses["default"]
                self._started.set_result((str(broker), str(namesrv)))
                await self._stop.wait()
                self._nursery.cancel_scope.cancel()

    @property
    def _broker(self) -> Broker:
        return self._kept.broker

    def call(self, method: "Callable[[BrokerHost, *Ts], Awaitable[T]]", *args: *Ts) -> T:
        """Run one of the methods below in the broker's thread, also from a thread with a loop."""
        result: Future[T] = Future()

        async def run() -> None:
            try:
                result.set_result(await method(self, *args))
            except Exception as exc:  # noqa: BLE001  # boundary: passed on to the test
                result.set_exception(exc)
            finally:
                if not result.done():
                    result.set_exception(RuntimeError("the broker was stopped meanwhile"))
            if self._stall_s:  # here, so that no later request of the test is answered before
                seconds, self._stall_s = self._stall_s, 0.0
                self._ends_stall.wait(seconds)

        self._token.run_sync_soon(self._nursery.start_soon, run)
        return result.result()

    def stop(self) -> None:
        """Stop the broker and wait for it; raise what ended it before."""
        self._ends_stall.set()
        if self._thread.is_alive():
            self._token.run_sync_soon(self._stop.set)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def kill(self) -> None:
        """Refuse to: a thread cannot be killed.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("a broker in a thread cannot be killed: take a BrokerProcess")

    # --- requests of tests, in the broker's thread -----------------------------------------------------------

    async def create_topic(self, topic: str, queues: int) -> None:
        """Create a topic unless it exists."""
        self._broker.topics.ensure(topic, queues)

    async def messages(self, topic: str) -> list[MessageExt]:
        """Return all messages of a topic in the order in which they were stored."""
        reader, config = self._broker.store.reader, self._broker.topics.get(topic)
        if config is None and not topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
            raise AssertionError(f"there is no topic {topic!r}")
        found: list[MessageExt] = []
        for queue_id in range(config.read_queue_nums if config else 0):
            at = reader.min_offset_in_queue(topic, queue_id)
            while at < reader.max_offset_in_queue(topic, queue_id):
                result = reader.get_message((topic, queue_id), at, _MESSAGES_AT_ONCE)
                at = result.next_begin_offset
                for buffer in result.buffers:
                    found += decode_records(buffer)
        for message in found:
            message.broker_name = self._config.broker_name
        return sorted(found, key=lambda message: message.physical_offset)

    async def groups(self) -> dict[str, Group]:
        """Return all groups that have members or offsets."""
        topics = {name: set(known) for name, known in finish(self._broker.groups.offsets.groups()).items()}
        for group in self._broker.groups.consumers:
            topics.setdefault(group.name, set()).update(group.subscriptions)
        found = {}
        for name in sorted(topics):
            if not is_system_group(name):
                live = self._broker.groups.consumers.get(name)
                behind = {topic: sum(self._behind(name, topic).values()) for topic in sorted(topics[name])}
                found[name] = Group(tuple(live.client_ids()) if live else (), behind)
        return found

    def _behind(self, group: str, topic: str) -> dict[int, int]:
        """Return the number of messages that a group has not consumed, by queue; queues without any are left out."""
        reader, config = self._broker.store.reader, self._broker.topics.get(topic)
        behind = {}
        for queue_id in range(config.read_queue_nums if config else 0):
            committed = self._broker.groups.offsets.query(group, topic, queue_id)
            done = reader.min_offset_in_queue(topic, queue_id) if committed is None else committed
            if (count := reader.max_offset_in_queue(topic, queue_id) - done) > 0:
                behind[queue_id] = count
        return behind

    async def progress(self, name: str) -> Group | None:
        """Return a group after its consumers have reported their progress.

        Java's clients report it every 5 s, or with the next pull, so waiting pulls are answered.
        """
        group = (await self.groups()).get(name)
        for topic in group.behind if group else ():
            for queue_id in self._behind(name, topic):
                self._broker.pulls.end_waiting(self._broker.store.queue(topic, queue_id))
        self._broker.worker.end_step()
        return group

    async def advance(self, milliseconds: int, passed_ms: int) -> None:
        """Set the clock, and return when all work due at that time is done; ``passed_ms`` seem to have passed."""
        self._ahead_ms += milliseconds
        self._passed_ms += passed_ms
        self._broker.clock_moved()
        with trio.move_on_after(_SETTLE_S):  # under load such a moment may never come
            await trio.testing.wait_all_tasks_blocked()

    async def drop_connections(self) -> None:
        """Close all connections."""
        for connection in list(self._broker.connections):
            connection.close("dropped by the test")
        self._broker.worker.end_step()

    async def stall(self, seconds: float) -> None:
        """Block the broker's thread as soon as the test has its answer."""
        self._stall_s = seconds

    async def slow_disk(self, seconds: float) -> None:
        """Make each sync take longer from now on."""
        self._disk.delay_s = seconds

    async def refuse(self, code: int, count: int, requests: Collection[int]) -> None:
        """Answer the next ``count`` of these requests with a code."""
        self.refused, self.refusals_left = (code, frozenset(requests)), count


class _Refusing:
    """Serves the requests of a broker, and refuses those that the test asked it to refuse."""

    def __init__(self, host: BrokerHost, service: Service) -> None:
        self._host = host
        self._service = service

    def commands(self, connection: Connection, frames: Iterator[Frame], arrived_at: float) -> Iterator[RemotingCommand]:
        if not self._host.refusals_left:
            return self._service.commands(connection, frames, arrived_at)
        return map(RemotingCommand.decode, frames)

    def serve(self, connection: Connection, command: RemotingCommand, arrived_at: float) -> RemotingCommand | None:
        code, requests = self._host.refused
        if self._host.refusals_left and command.code in requests:
            self._host.refusals_left -= 1
            raise RefusedError("refused as the test asked", code)
        return self._service.serve(connection, command, arrived_at)


class ProcessHost:
    """Starts, asks and ends the process; it ends by itself with this one."""

    def __init__(self, config: BrokerConfig, sync_delay_s: float, ahead_ms: int) -> None:
        self._arguments: Final = (config, sync_delay_s, ahead_ms)
        self._lock: Final = threading.Lock()
        self._process: subprocess.Popen[bytes]

    def start(self) -> tuple[str, str]:
        """Start the process; return the addresses of broker and name server.

        Raises:
            TriomqError: as ``triomq.broker.open_broker``.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-m", "triomq.testing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the tests
        )
        addresses: tuple[str, str] = self._ask(self._arguments)
        return addresses

    def call(self, method: Callable[[BrokerHost, *Ts], Awaitable[T]], *args: *Ts) -> T:
        """Run a method of :class:`BrokerHost` in the process."""
        result: T = self._ask((method, args))
        return result

    def _ask(self, question: object) -> Any:
        """Send a question and return the answer, or raise it.

        Raises:
            ConnectionError: the process is not running.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            with self._lock:
                pickle.dump(question, self._process.stdin)
                self._process.stdin.flush()
                is_answer, result = pickle.load(self._process.stdout)  # noqa: S301  # from our child
        except (EOFError, OSError, ValueError):
            raise ConnectionError("the broker's process is not running: faults.restart() starts it again") from None
        if is_answer:
            return result
        raise result

    def stop(self) -> None:
        """Stop the broker in order, and kill it after 10 s."""
        with suppress(BrokenPipeError):
            self._process.stdin.close()  # type: ignore[union-attr]  # it is a pipe
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()  # type: ignore[union-attr]  # likewise

    def kill(self) -> None:
        """Kill the process, as in a crash."""
        self._process.kill()
        self._process.wait()


def serve() -> None:
    """Run in the process: read the arguments of a host, then questions until the pipe ends."""
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing else may write there

    def answer(function: Callable[..., Any], *args: Any) -> None:
        try:
            result = True, function(*args)
        except Exception as exc:  # noqa: BLE001  # boundary: passed on to the test
            result = False, exc
        pickle.dump(result, answers)
        answers.flush()

    host = BrokerHost(*pickle.load(questions))  # noqa: S301  # of the test that started us
    answer(host.start)
    while True:
        try:
            method, args = pickle.load(questions)  # noqa: S301  # likewise
        except EOFError:
            break
        answer(host.call, method, *args)
    host.stop()
