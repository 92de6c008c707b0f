"""Power cuts of a slave: the data on its disk stays, and the rest comes from its master again."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.powercut.expected import units
from tests.powercut.model_disk import ModelDisk, PowerCutError
from tests.unit.storage.making import HOST
from triomq.storage.append import entry
from triomq.storage.config import Durability, StoreConfig
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.cold_read import finish

FILE: Final = 8192
SEEDS: Final = range(24)
_OPERATIONS: Final = 40
_CUTS: Final = 3


def config(root: Path, durability: Durability = Durability.ASYNC) -> StoreConfig:
    return StoreConfig(
        root=root,
        commit_log_file_size_bytes=FILE,
        consume_queue_file_size_bytes=400,
        durability=durability,
        reserve_step_bytes=4096,
        index_slots=16,
        index_units=64,
    )


@pytest.fixture
def master(tmp_path: Path) -> MessageStore:
    """Some files of messages: bodies, properties and topics of many lengths."""
    store = MessageStore(config(tmp_path / "master"))
    store.open()
    random = Random(1)
    for _ in range(50):
        queue = store.queue(random.choice(("T", "Topic" * 20)), random.randrange(2))
        body = random.randbytes(random.choice((1, 50, 600, 1500)))
        properties = b"KEYS\x01" + b"k" * random.choice((1, 100, 1000))
        store.append([entry(queue, body, properties, born_host=HOST, store_host=HOST)])
    return store


class Slave:
    """One seed: a slave that loses its power some times."""

    def __init__(self, seed: int, master: MessageStore, base: Path) -> None:
        self.random = Random(seed)
        self.master = master
        self.disk = ModelDisk(base, self.random)
        self.root = base / "slave"
        self.root.mkdir(parents=True, exist_ok=True)  # for the lock, which is a real one
        self.config = config(self.root, self.random.choice(tuple(Durability)))
        self.durable_end = 0
        self.cuts = 0

    def run(self) -> None:
        for _ in range(_CUTS):
            self.disk.cut_later(1 + int(self.random.expovariate(1 / 40)))
            try:
                self.open()
                for _ in range(_OPERATIONS):
                    self.random.choice((self.copy, self.copy, self.copy, self.dispatch, self.flush))()
            except PowerCutError:
                self.cuts += 1
            self.store._directory.release()
            self.disk = self.disk.after_power_cut(self.random)
            self.open()
            self.compare()
            self.store._directory.release()
            self.disk = self.disk.after_power_cut(self.random, keep=1.0)
        self.open()
        while self.copy(4000):
            pass
        self.dispatch()
        self.compare()
        assert self.store.commit_log.max_offset == self.master.commit_log.max_offset
        self.store.close()

    def open(self) -> None:
        self.store = MessageStore(self.config, file_system=self.disk, is_replica=True)
        self.store.open()

    def copy(self, most_bytes: int = 0) -> bool:
        replica = self.store.replica
        piece = self.master.commit_log.piece(replica.end, most_bytes or self.random.choice((1, 200, 700, 2000)))
        if piece:
            replica.append(replica.end, piece)
        return bool(piece)

    def dispatch(self) -> None:
        finish(self.store.replica.dispatching())

    def flush(self) -> None:
        make_plan: Callable[[], object] = self.random.choice((self.store.flush, self.flush_log))
        make_plan()
        self.durable_end = self.store.commit_log.flushed_offset

    def flush_log(self) -> None:
        if (plan := self.store.flush_plan()) is not None:
            plan.run()
            self.store.flush_done(plan)

    def compare(self) -> None:
        """Nothing on the disk is lost, and all that is there is the master's."""
        log, original = self.store.commit_log, self.master.commit_log
        assert log.max_offset >= self.durable_end
        for file in log.files.files:
            end = min(file.end, log.max_offset)
            assert file.view[: end - file.start] == original.files.files[file.start // FILE].view[: end - file.start]
        assert units(self.store, 0, log.max_offset) == units(self.master, 0, log.max_offset)


@pytest.mark.timeout(600)
def test_power_cuts_of_slave_lose_nothing_synced(master: MessageStore, tmp_path: Path) -> None:
    cuts = 0
    for seed in SEEDS:
        slave = Slave(seed, master, tmp_path / str(seed))
        try:
            slave.run()
        except Exception as exc:
            raise AssertionError(f"seed {seed}") from exc
        cuts += slave.cuts
    assert cuts > len(SEEDS)
    master.close()
