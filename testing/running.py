"""A running broker for tests: its address, its messages and groups, its clock, and faults."""

import asyncio
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import trio

from triomq.broker import Address, BrokerConfig, Listener
from triomq.protocol.record.message import MessageExt
from triomq.storage.config import Durability, StoreConfig
from triomq.testing.host import SENDS, BrokerHost, Group, ProcessHost

_MEMORY: Final = Path("/dev/shm")  # noqa: S108  # a folder in it is made safely
_ENOUGH_MEMORY_BYTES: Final = 1024**3
_ANY_PORT: Final = "127.0.0.1:0"
_PAUSE_S: Final = 0.02


class Clock:
    """The broker's wall clock, which dates messages and decides which are due."""

    def __init__(self, broker: "RunningBroker") -> None:
        self._broker = broker
        self.ahead_ms = 0

    def advance(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Move the clock on; return when the messages, retries and checks of transactions that are due have been sent.

        Clients and connections notice nothing: their time is another one.

        Raises:
            ValueError: the time is negative.
        """
        milliseconds = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds) // timedelta(milliseconds=1)
        if milliseconds < 0:
            raise ValueError("time does not go back: to set the broker's clock to a wrong time, call clock.jump")
        self._set(milliseconds, milliseconds)

    def jump(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Set the clock forward or, with negative numbers, back, while no time passes; also for later restarts."""
        jump = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        self._set(jump // timedelta(milliseconds=1), 0)

    def _set(self, milliseconds: int, passed_ms: int) -> None:
        self.ahead_ms += milliseconds
        self._broker.host.call(BrokerHost.advance, milliseconds, passed_ms)


class Faults:
    """Faults that a test asks for."""

    def __init__(self, broker: "RunningBroker") -> None:
        self._broker = broker
        self.sync_delay_s = 0.0

    def drop_connections(self) -> None:
        """Close all connections; clients may connect again."""
        self._broker.host.call(BrokerHost.drop_connections)

    def stall(self, seconds: float) -> None:
        """Stop the broker's loop from now on: it accepts, reads and answers nothing."""
        self._broker.host.call(BrokerHost.stall, seconds)

    def slow_disk(self, seconds: float) -> None:
        """Make each sync of the broker's disk take so much longer, also after a restart; 0 ends that."""
        self.sync_delay_s = seconds
        self._broker.host.call(BrokerHost.slow_disk, seconds)

    def refuse(self, *, code: int, next: int = 1, requests: Collection[int] = SENDS) -> None:  # noqa: A002  # reads well
        """Answer the next sends, or requests with other codes, with a ``ResponseCode``; replaces an earlier call.

        Raises:
            TypeError: a code is no number.
        """
        for number in (code, *requests):
            if not isinstance(number, int):
                raise TypeError(f"refuse: {number!r} is no code; pass a number, as ResponseCode.SYSTEM_BUSY")
        self._broker.host.call(BrokerHost.refuse, code, next, requests)

    def clear(self) -> None:
        """End all refusals and delays."""
        self.refuse(code=0, next=0)
        self.slow_disk(0)

    def kill(self) -> None:
        """Kill a ``BrokerProcess``, as in a crash."""
        self._broker.host.kill()

    def restart(self) -> None:
        """Start the broker again with the same addresses and messages; stop it before if it runs."""
        self._broker.host.stop()
        self._broker.start()


class RunningBroker:
    """A broker in a thread of this process, while a block runs, ``with`` or ``async with``.

    Entering and leaving block for some ms.

    Attributes:
        address, namesrv: of broker and name server, ``HOST:PORT``.
        clock, faults: time and trouble.
        host: what runs it.
    """

    _make_host: ClassVar[type[BrokerHost | ProcessHost]] = BrokerHost
    host: BrokerHost | ProcessHost

    def __init__(self, *, durability: Durability | str = Durability.ASYNC, **settings: Any) -> None:
        """Prepare it; ``settings`` are those of ``BrokerConfig`` beside addresses and store."""
        self._durability: Final = Durability(durability)
        self.address = self.namesrv = _ANY_PORT
        self.clock: Final = Clock(self)
        self.faults: Final = Faults(self)
        # Slow machines run tests too: sends are refused only if the test asks for it.
        self._settings: Final = {"shutdown_grace_s": 0.1, "max_send_wait_s": 0, **settings}
        self._numbers: Final = itertools.count(1)
        self._folder: tempfile.TemporaryDirectory[str]

    def start(self) -> None:
        """Start it where it was, or at any free ports."""
        listener = Listener(broker=Address.parse(self.address), namesrv=Address.parse(self.namesrv))
        # A store that costs little: small files, and never a full disk because others use it.
        store = StoreConfig(
            root=Path(self._folder.name) / "store",
            durability=self._durability,
            commit_log_file_size_bytes=16 * 1024**2,
            consume_queue_file_size_bytes=20 * 1000,
            index_slots=1000,
            index_units=10_000,
            reserve_step_bytes=256 * 1024,
            disk_max_used_ratio=95,
            disk_clean_ratio=100,
            disk_full_ratio=100,
        )
        self.host = self._make_host(
            BrokerConfig(store=store, listeners=(listener,), **self._settings),
            self.faults.sync_delay_s,
            self.clock.ahead_ms,
        )
        self.address, self.namesrv = self.host.start()

    def __enter__(self) -> Self:
        has_memory = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _ENOUGH_MEMORY_BYTES
        base = _MEMORY if has_memory else None
        self._folder = tempfile.TemporaryDirectory(prefix="triomq-", dir=base, ignore_cleanup_errors=True)
        try:
            self.start()
        except BaseException:
            self._folder.cleanup()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.host.stop()
        finally:
            self._folder.cleanup()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()

    def create_topic(self, topic: str, queues: int = 4) -> str:
        """Create a topic unless it exists; return its name."""
        self.host.call(BrokerHost.create_topic, topic, queues)
        return topic

    def new_topic(self, prefix: str = "topic", queues: int = 4) -> str:
        """Create a topic with a name that no other one has, and return the name."""
        return self.create_topic(f"{prefix}-{next(self._numbers)}", queues)

    def messages(self, topic: str) -> list[MessageExt]:
        """Return all messages of a topic in the order in which they were stored.

        Raises:
            AssertionError: the topic does not exist.
        """
        return self.host.call(BrokerHost.messages, topic)

    @property
    def groups(self) -> dict[str, Group]:
        """All consumer groups that have members or have consumed, by name."""
        return self.host.call(BrokerHost.groups)

    def wait_until_consumed(self, group: str, timeout: float = 10.0) -> Awaitable[None]:
        """Wait until a group has consumed all messages of its topics; ``await`` it in a coroutine of trio or asyncio.

        A message that failed counts as consumed until its retry is due: ``clock.advance`` sees to that.  Broadcasting
        consumers keep their offsets to themselves: for them it fails.

        Raises:
            AssertionError: ``timeout`` seconds have passed; the text has the messages that are left.
        """
        pauses = self._pauses_until_consumed(group, timeout)
        if trio.lowlevel.in_trio_task():
            return _sleep_all(trio.sleep, pauses)
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # the caller has no loop
            for pause in pauses:
                time.sleep(pause)
            return _Done()
        return _sleep_all(asyncio.sleep, pauses)

    def _pauses_until_consumed(self, name: str, timeout: float) -> Iterator[float]:
        deadline = time.monotonic() + timeout
        while True:
            group = self.host.call(BrokerHost.progress, name)
            left = {topic: count for topic, count in group.behind.items() if count} if group else {}
            if group and not left:
                return
            if time.monotonic() >= deadline:
                what = f"has left {left}, members={list(group.members)}" if group else "never had a member"
                raise AssertionError(f"after {timeout:g} s group {name!r} {what}")
            yield _PAUSE_S


class BrokerProcess(RunningBroker):
    """A broker in a separate process, which can be killed."""

    _make_host: ClassVar[type[BrokerHost | ProcessHost]] = ProcessHost


def open_broker(**settings: Any) -> RunningBroker:
    """Return a broker for ``async with`` or ``with``; ``settings`` as for ``RunningBroker``."""
    return RunningBroker(**settings)


class _Done:
    def __await__(self) -> Generator[None, None, None]:
        return
        yield


async def _sleep_all(sleep: Callable[[float], Awaitable[None]], pauses: Iterator[float]) -> None:
    for pause in pauses:
        await sleep(pause)
