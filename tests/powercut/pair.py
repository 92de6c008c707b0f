"""Random lives of a sync-master and its slave, each on a disk that loses power.

Both run the code of the broker that sends, copies, flushes and answers, in one loop whose clock jumps.  A life is a
seed: it decides sizes, sends, and when one of the two, or both, lose their power, are killed, stopped and started.

* An acknowledged message is in the master's store after each start, once.  It is also in the store of a slave with
  durability ``sync``; with durability ``async`` unless the slave has lost its power since.
* A slave whose master has lost the end of its log gives up its own; no acknowledged message is there.  So does a former
  master after its slave was opened as master.
* When both have run for a while, their logs are equal byte by byte, and so are their queues.
* The slave, opened as master after one more loss of power, has and delivers all acknowledged messages.
"""

import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path
from random import Random
from typing import Any, Final, Literal, Self
from unittest.mock import patch

import trio
from trio.testing import MockClock

from tests.commands import make_command
from tests.powercut.expected import records_of, units
from tests.powercut.model_disk import ModelDisk, PowerCutError
from tests.unit.broker.recording import PLAIN, Peer
from triomq.broker.addresses import Address
from triomq.broker.config import BrokerConfig
from triomq.broker.namesrv.route_table import Master
from triomq.broker.replication import asking
from triomq.broker.replication import master as master_module
from triomq.broker.replication import slave as slave_module
from triomq.broker.server import Broker
from triomq.broker.services import group_commit
from triomq.broker.services.flush import flush_periodically
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.record.record import decode_record
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.ha import TRANSFER_BYTES
from triomq.storage.config import Durability, StoreConfig
from triomq.storage.message_store import MessageStore
from triomq.storage.store_directory import LockFile

FILE_SIZE: Final = 8192
_EVENTS: Final = 4
_OPERATIONS: Final = 12
_MOST_SENT: Final = 6
ADDRESS: Final = Address("192.0.2.1", 10911)
HA_ADDRESS: Final = Address("192.0.2.1", 10912)
_SHORT_PAUSES_S: Final = (0.0, 0.001, 0.01, 0.2)
_PAUSES_S: Final = (*_SHORT_PAUSES_S, 0.0, 1.0, 4.0)
_SYNCS_S: Final = (0.0, 0.001, 0.01, 0.5)
_SETTLED_S: Final = 30.0
_ARMED_SHARE: Final = 0.7
_PROMOTED_SHARE: Final = 0.3
_INTERRUPTED_SHARE: Final = 0.3
_PEER: Final = Address("192.0.2.2", 50000)
Ending = Literal["cut", "kill", "stop"]
_ENDINGS: Final[tuple[Ending, ...]] = ("cut", "cut", "kill", "stop")


class End:
    """One of the two machines.

    Attributes:
        broker: what runs there; ``None``: nothing does.
        fresh_from: how many messages were acknowledged when it may last have lost some of them.
    """

    def __init__(self, life: "PairLife", role: Literal["sync-master", "slave"], durability: Durability) -> None:
        self.role = role
        self.broker: Broker | None = None
        self.fresh_from = 0
        self._life = life
        self.disk = ModelDisk(life.base, life.random)
        self.config = StoreConfig(
            root=life.base / role,
            commit_log_file_size_bytes=FILE_SIZE,
            consume_queue_file_size_bytes=400,
            durability=durability,
            reserve_step_bytes=life.random.choice((1, 4096)),
            consume_queue_reserve_step_bytes=4096,
            index_slots=7,
            index_units=40,
            disk_full_ratio=100,
        )
        self._store: MessageStore
        self._is_off = False
        self._scope: trio.CancelScope
        self._ended = trio.Event()
        self._ended.set()

    @property
    def is_slave(self) -> bool:
        return self.role == "slave"

    def open_store(self, *, is_replica: bool) -> MessageStore:
        """Open the store, which must be closed again."""
        self._store = MessageStore(
            self.config, file_system=self.disk, clock_ms=self._life.clock_ms, is_replica=is_replica
        )
        self._store.open()
        return self._store

    def release(self) -> None:
        """Let the store be opened again, as if the process had ended."""
        self._store._directory.release()

    async def start(self, nursery: trio.Nursery) -> None:
        """Open the store and start the services; an armed cut may come meanwhile."""
        await self._ended.wait()
        self._ended, self._scope, self._is_off = trio.Event(), trio.CancelScope(), False
        await nursery.start(self._run)

    async def end(self, how: Ending) -> None:
        """End what runs there."""
        if (broker := self.broker) is None:
            return
        self._scope.cancel()
        await self._ended.wait()
        if self._is_off:
            return
        self.broker = None
        try:
            if how == "cut":
                self._lose_power()
            elif how == "stop":
                _close(broker)
            else:
                self.release()
        except PowerCutError:
            self._lose_power()

    def do(self, function: Callable[[], None]) -> None:
        """Call something that may come to the boundary of an armed cut."""
        try:
            function()
        except PowerCutError:
            self._scope.cancel()
            self._lose_power()

    async def _run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until the end; meanwhile the broker may open again."""
        try:
            with self._scope:
                while True:
                    self.broker = broker = self._open()
                    await self._serve(broker, task_status)
                    assert broker.reopening is not None
                    _close(broker)
                    broker.reopening.meanwhile()
                    self._life.tails_aside += 1
                    task_status = trio.TASK_STATUS_IGNORED
        except* PowerCutError:
            self._lose_power()
            if task_status is not trio.TASK_STATUS_IGNORED:
                with suppress(RuntimeError):  # it was started before
                    task_status.started()
        finally:
            self._ended.set()

    def _open(self) -> Broker:
        settings: dict[str, Any] = {"role": self.role, "broker_id": int(self.is_slave)}
        settings["ha_master" if self.is_slave else "ha_listen"] = (
            HA_ADDRESS if self.is_slave else Address("127.0.0.1", 0)
        )
        store, clock_ms = self.open_store(is_replica=self.is_slave), self._life.clock_ms
        self._life.check(self, store)
        broker = Broker(BrokerConfig(store=self.config, **settings), store, clock_ms, elapsed_clock_ms=clock_ms)
        broker.is_kept = True
        broker.registration.master = Master(str(ADDRESS), str(HA_ADDRESS))
        broker.worker.clock = lambda: 0.0  # no step is too long
        broker.load()
        if broker.master is not None:
            broker.master.open()
        return broker

    async def _serve(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        """Run the services that handle the log until the broker wants to be opened again."""
        flush = partial(flush_periodically, broker.store, broker.worker, broker.statistics.flushes)
        async with trio.open_nursery() as nursery:
            broker.worker.nursery = nursery
            nursery.start_soon(broker.context.reader.run, ())
            nursery.start_soon(partial(flush, of_queues=True))
            if self.config.durability is Durability.ASYNC:
                nursery.start_soon(partial(flush, of_queues=False))
            for service in (broker.group_commit, broker.master, broker.slave):
                if service is not None:
                    nursery.start_soon(service.run)
            task_status.started()
            await broker.ending.wait()
            nursery.cancel_scope.cancel()

    def _lose_power(self) -> None:
        if self._is_off:
            return
        life, self._is_off, self.broker = self._life, True, None
        life.cuts += 1
        life.collect()
        self.release()
        self.disk = self.disk.after_power_cut(life.random)
        if self.config.durability is Durability.ASYNC:
            self.fresh_from = len(life.acknowledged_bodies)


class PairLife:
    """One seed.  ``run`` raises ``AssertionError`` for the first thing that is not as it must be.

    Attributes:
        cuts: how often one of the two lost its power.
        acknowledged: messages that had to be in a store when it was opened, over all starts.
        acknowledged_bodies: of the messages that the master has acknowledged.
        was_cut: whether there was a cut.
        tails_aside: how often the slave gave up the end of its log.
        decided: pairs decide no transactions.
    """

    decided: Final = ()

    def __init__(self, seed: int, base: Path, *, slave_durability: Durability | None = None) -> None:
        self.random = Random(seed)
        self.base = base
        self.cuts = self.acknowledged = self.tails_aside = 0
        self.acknowledged_bodies: list[bytes] = []
        durability = slave_durability or self.random.choice((Durability.SYNC, Durability.SYNC, Durability.ASYNC))
        self.master = End(self, "sync-master", Durability.SYNC)
        self.slave = End(self, "slave", durability)
        self._seed = seed
        self._sent: dict[int, bytes] = {}
        self._not_waiting: set[int] = set()
        self._peer: Peer | None = None

    @property
    def was_cut(self) -> bool:
        return self.cuts > 0

    def clock_ms(self) -> int:
        return 1_800_000_000_000 + int(trio.current_time() * 1000)

    def release(self) -> None:
        """Let the stores be opened again after a failure."""
        for end in self.ends:
            if hasattr(end, "_store"):
                end.release()

    @property
    def ends(self) -> tuple[End, End]:
        return self.master, self.slave

    def run(self) -> "PairLife":
        """Live through some events, and compare."""
        try:
            with self._played():
                trio.run(self._live, clock=MockClock(autojump_threshold=0))
        except BaseExceptionGroup as group:
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise error from None
        return self

    async def _live(self) -> None:
        async with trio.open_nursery() as nursery:
            for end in self.ends:
                await end.start(nursery)
            await self._catch_up(nursery)  # a slave follows no master that has lost all, nor begins with a later file
            for _ in range(self.random.randint(1, _EVENTS)):
                await self._send_often()
                await self._disturb()
                await self._send_often()
                await self._start(nursery)
            await self._send_often()
            for end in self.ends:
                end.disk.cut_at = inf
            await self._catch_up(nursery)
            self._compare()
            await self.master.end(self.random.choice(_ENDINGS))
            await self.slave.end("cut" if self._is_safe(self.slave) else "kill")
            self._promote()

    # What happens

    async def _send_often(self) -> None:
        for _ in range(self.random.randint(0, _OPERATIONS)):
            self._send_some()
            await trio.sleep(self.random.choice(_PAUSES_S))

    def _send_some(self) -> None:
        """Send requests to the master, if it is there, as one or several reads bring them."""
        if (broker := self.master.broker) is None:
            return
        commands = []
        for _ in range(self.random.randint(1, _MOST_SENT)):
            number = len(self._sent) + 1
            self._sent[number] = b"%d " % number + self.random.randbytes(self.random.choice((0, 50, 600, 1500)))
            properties = f"KEYS\x01{number}\x02WAIT\x01{self.random.choice(('true', 'true', 'true', 'false'))}"
            fields = {**PLAIN, "b": self.random.choice(("T", "Topic" * 10)), "e": "0", "i": properties}
            commands.append(make_command(RequestCode.SEND_MESSAGE_V2, number, 0, fields, self._sent[number]))
            if properties.endswith("false"):
                self._not_waiting.add(number)
        if self._peer is None or self._peer.broker is not broker:
            self.collect()
            self._peer = Peer(broker)
        peer = self._peer
        self.master.do(lambda: peer.read(*commands))
        self.master.do(broker.worker.end_step)

    async def _disturb(self) -> None:
        """End one of the two or both, at once or at some boundary of the first one; sometimes the two change roles."""
        how = self.random.choice(_ENDINGS)
        ends = self.random.sample(self.ends, self.random.choice((1, 1, 2)))
        if how == "cut" and self.random.random() < _ARMED_SHARE:
            ends[0].disk.cut_later(1 + int(self.random.expovariate(1 / 30)))
            pauses_s = self.random.choice((_SHORT_PAUSES_S, _PAUSES_S))
            for _ in range(_OPERATIONS):
                if ends[0].broker is not None:
                    self._send_some()
                    await trio.sleep(self.random.choice(pauses_s))
        for end in ends:
            await end.end(how)
        if self.master.broker is None and self._is_safe(self.slave) and self.random.random() < _PROMOTED_SHARE:
            await self.slave.end(self.random.choice(_ENDINGS))
            self.master, self.slave = self.slave, self.master
            self.master.role, self.slave.role = "sync-master", "slave"

    async def _start(self, nursery: trio.Nursery) -> None:
        """Start what does not run; some starts lose their power."""
        for end in self.random.sample(self.ends, 2):
            if end.broker is None and self.random.random() < _INTERRUPTED_SHARE:
                end.disk.cut_later(1 + int(self.random.expovariate(1 / 8)))
            while end.broker is None:
                await end.start(nursery)
                if self.random.random() < 0.5:
                    await trio.sleep(self.random.choice(_PAUSES_S))

    async def _catch_up(self, nursery: trio.Nursery) -> None:
        """Start what does not run, and send until the slave has acknowledged a message."""
        begin = trio.current_time()
        self.collect()
        count = len(self.acknowledged_bodies)
        while len(self.acknowledged_bodies) == count:
            await self._start(nursery)
            self._send_some()
            await trio.sleep(1.0)
            self.collect()
            assert trio.current_time() < begin + _SETTLED_S, "the slave does not acknowledge"

    def collect(self) -> None:
        """Note the messages that were acknowledged since."""
        if self._peer is not None:
            for answer in self._peer.sent:
                if answer.code == ResponseCode.SUCCESS and answer.opaque not in self._not_waiting:
                    self.acknowledged_bodies.append(self._sent[answer.opaque])
            self._peer.sent.clear()

    @contextmanager
    def _played(self) -> Iterator[None]:
        """Replace sockets by pairs and threads by calls, so that the seed decides the order of tasks."""
        run = vars(trio._core._run)
        with ExitStack() as stack:
            stack.enter_context(patch.dict(run, {"_ALLOW_DETERMINISTIC_SCHEDULING": True, "_r": Random(self._seed)}))
            stack.enter_context(patch.object(LockFile, "acquire", _lock))
            stack.enter_context(patch.object(trio.to_thread, "run_sync", _in_no_thread))
            stack.enter_context(patch.object(group_commit, "FlushThread", lambda: _Flushing(self.random)))
            frame_bytes = self.random.choice((300, TRANSFER_BYTES))  # cuts records anywhere
            stack.enter_context(patch.object(master_module, "TRANSFER_BYTES", frame_bytes))
            stack.enter_context(patch.object(slave_module, "connect", self._connect))
            stack.enter_context(patch.object(asking, "connect", self._ask))
            stack.enter_context(patch.object(master_module, "ends_of", lambda *_: (_PEER, None, True)))
            yield

    async def _connect(self, _address: Address, _tls: None) -> tuple[trio.SocketStream, str]:
        await trio.lowlevel.checkpoint()
        broker = self.master.broker
        if broker is None or broker.master is None or not hasattr(broker.master, "_nursery"):
            raise ConnectionRefusedError("the master is away")
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.random.choice((1, 100_000)))
        try:
            broker.master._accepted(theirs)
        except (RuntimeError, ValueError) as exc:  # its nursery has ended, or its reader
            raise ConnectionRefusedError("the master ends") from exc
        return trio.SocketStream(trio.socket.from_stdlib_socket(ours)), "127.0.0.1"

    async def _ask(self, _address: Address, _tls: None) -> tuple["_Port", str]:
        await trio.lowlevel.checkpoint()
        if self.master.broker is None:
            raise ConnectionRefusedError("the master is away")
        return _Port(self.master), "127.0.0.1"

    # What must be

    def _is_safe(self, end: End) -> bool:
        """Whether an end has all acknowledged messages on its disk."""
        return end.config.durability is Durability.SYNC

    def check(self, end: End, store: MessageStore) -> None:
        """Compare a store that was opened with the acknowledged messages."""
        self.collect()
        stored = Counter(bytes(decode_record(record).stored_body) for _, record in records_of(store))
        assert all(count == 1 for count in stored.values()), f"{end.role}: a message is stored twice"
        assert stored.keys() <= set(self._sent.values()), f"{end.role}: a message that was not sent"
        if end.fresh_from < len(self.acknowledged_bodies) and store.commit_log.min_offset <= 0:
            missing = [body[:10] for body in self.acknowledged_bodies if body not in stored]
            assert not missing, f"{end.role} lacks {len(missing)} of {len(self.acknowledged_bodies)}: {missing}"
            self.acknowledged += len(self.acknowledged_bodies)

    def _compare(self) -> None:
        """Compare log and queues of the two."""
        assert self.master.broker is not None
        assert self.slave.broker is not None
        master, slave = self.master.broker.store, self.slave.broker.store
        begin, end = slave.commit_log.min_offset, master.commit_log.max_offset
        assert slave.commit_log.max_offset == end
        files = {file.start: bytes(file.view) for file in master.commit_log.files.files}
        for file in slave.commit_log.files.files:
            assert bytes(file.view) == files.get(file.start, bytes(FILE_SIZE)), f"the files at {file.start} differ"
        assert units(slave, begin, end) == units(master, begin, end)

    def _promote(self) -> None:
        store = self.slave.open_store(is_replica=False)
        self.check(self.slave, store)
        delivered = set()
        for queue in store.queues:
            for number in range(queue.min_offset, queue.max_offset):
                for record in store.reader.get_message(queue, number, 1).buffers:
                    delivered.add(bytes(decode_record(record).stored_body))
        if store.commit_log.min_offset <= 0:
            assert delivered >= set(self.acknowledged_bodies), "the promoted slave does not deliver all"
        store.close()


class _Port(Peer):
    """A connection to the port of the master for requests: the peer there, and the stream of the slave."""

    def __init__(self, master: End) -> None:
        assert master.broker is not None
        super().__init__(master.broker)
        self._master = master
        self._answering, self._answers = trio.open_memory_channel[bytes](10)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closed = True

    def send(self, command: RemotingCommand) -> None:
        self._answering.send_nowait(command.encode())

    async def send_all(self, request: bytes) -> None:
        await trio.lowlevel.checkpoint()
        if self._master.broker is not self.broker:
            raise trio.BrokenResourceError("the master is away")
        self.serve(RemotingCommand.decode(request[4:]))

    async def receive_some(self, _most: int) -> bytes:
        return await self._answers.receive()


def _close(broker: Broker) -> None:
    broker.save_tables()
    broker.store.close()


class _Flushing:
    """A disk that syncs while others work, in place of ``FlushThread``."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """No thread ends."""

    async def run(self, action: Callable[[], None]) -> None:
        await trio.sleep(self._random.choice(_SYNCS_S))
        action()
        await trio.lowlevel.checkpoint()


def _lock(lock: LockFile, acquire: Callable[..., None] = LockFile.acquire, **how: bool) -> None:
    lock.path.parent.mkdir(parents=True, exist_ok=True)  # locks are real files
    acquire(lock, **how)


async def _in_no_thread(function: Callable[..., object], *arguments: object, **_: object) -> object:
    await trio.lowlevel.checkpoint()
    return function(*arguments)
