"""A power cut in the middle of a recovery: the next one has the result of an undisturbed one."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.powercut.model_disk import ModelDisk, PowerCutError
from triomq.protocol.host import encode_host
from triomq.storage.append import entry
from triomq.storage.commit_log.log_scan import DamagedPart
from triomq.storage.config import StoreConfig
from triomq.storage.files.file_system import FileSystem
from triomq.storage.files.log_state import Checkpoint
from triomq.storage.message_store import MessageStore

FILE: Final = 4096
TOPICS: Final = ("T", "U")
MESSAGES: Final = 30
HOST: Final = encode_host("127.0.0.1", 10911)
NOW_MS: Final = 1_800_000_000_000
SHARES_KEPT: Final = (0.0, 0.3, 0.5, 0.7, 1.0)


class Crashed:
    """A store that lost its power with some files damaged; ``disk`` gives it afresh."""

    def __init__(self, base: Path) -> None:
        self.config = StoreConfig(
            root=base / "store",
            commit_log_file_size_bytes=FILE,
            consume_queue_file_size_bytes=100,
            max_message_size_bytes=1000,
            reserve_step_bytes=1,
            consume_queue_reserve_step_bytes=1,
            index=False,
            disk_full_ratio=100,
        )
        self.config.root.mkdir(parents=True)  # for the lock, which is a real one
        running = ModelDisk(base, Random(1))
        store = MessageStore(self.config, file_system=running, clock_ms=lambda: NOW_MS)
        store.open()
        for number in range(MESSAGES):
            queue = store.queue(TOPICS[number % 2], 0)
            store.append([entry(queue, b"%d" % number * 100, b"", born_host=HOST, store_host=HOST)])
        self.units = {topic: store.reader.queue_units(topic, 0, 0, MESSAGES) for topic in TOPICS}
        self.log_end = store.commit_log.max_offset
        store.flush()
        store._directory.release()
        self._disk = running.after_power_cut(Random(1), keep=1.0)

    def disk(self, random: Random) -> ModelDisk:
        return self._disk.after_power_cut(random, keep=1.0)

    def damage_log(self, offset: int, content: bytes) -> None:
        self._overwrite(self.config.root / "commitlog" / f"{offset // FILE * FILE:020d}", offset % FILE, content)

    def damage_queue(self, topic: str, number: int, content: bytes) -> None:
        path = self.config.root / "consumequeue" / topic / "0" / f"{number // 5 * 100:020d}"
        self._overwrite(path, number % 5 * 20, content)

    def save(self, checkpoint: Checkpoint) -> None:
        checkpoint.save(self._disk, self.config.root / "checkpoint")

    def _overwrite(self, path: Path, at: int, content: bytes) -> None:
        old = self._disk.read_file(path)
        self._disk.put(path, (old[:at] + content + old[at + len(content) :])[: len(old)])

    def open(self, disk: FileSystem) -> MessageStore:
        store = MessageStore(self.config, file_system=disk, clock_ms=lambda: NOW_MS)
        try:
            store.open()
        finally:
            store._directory.release()
        return store

    def contents(self, disk: ModelDisk) -> dict[Path, bytes]:
        """Return log and queues."""
        parts = ("commitlog", "consumequeue")
        return {
            path: content
            for path, content in disk.content().items()
            if path.relative_to(self.config.root).parts[0] in parts
        }

    def damaged(self, parts: Iterable[DamagedPart]) -> set[bytes]:
        """Return the content of damaged parts before a recovery."""
        files = self.config.root / "commitlog"
        return {
            self._disk.read_file(files / f"{start // FILE * FILE:020d}")[start % FILE :][: end - start]
            for start, end, *_ in parts
        }


def hurt_record(crashed: Crashed) -> None:
    """One record in the middle is damaged, and the last of a queue."""
    for unit in (crashed.units["T"][7], crashed.units["U"][-1]):
        crashed.damage_log(unit.physical_offset + 8, b"\1\2\3\4")


def torn_tail(crashed: Crashed) -> None:
    """Of the last records something reached the disk, of their units all."""
    begin = crashed.units["T"][-3].physical_offset
    for offset in (begin, *range(begin - begin % FILE + FILE, crashed.log_end, FILE)):
        crashed.damage_log(offset, bytes(8) + b"\1" * FILE)


def lost_units(crashed: Crashed) -> None:
    """Units never reached the disk, their records did, but for one whose unit did."""
    crashed.save(Checkpoint())
    crashed.damage_queue("T", 5, bytes(100))
    crashed.damage_queue("U", 2, bytes(20))
    crashed.damage_log(crashed.units["T"][4].physical_offset + 8, b"\1\2\3\4")


def all_of_it(crashed: Crashed) -> None:
    hurt_record(crashed)
    torn_tail(crashed)
    lost_units(crashed)


DAMAGES: Final = (hurt_record, torn_tail, lost_units, all_of_it)


def cuts(crashed: Crashed, share: float) -> Iterator[ModelDisk]:
    """Recover with a cut at each boundary, and yield the disk after it."""
    boundary = 0
    while True:
        boundary += 1
        random = Random(boundary)
        disk = crashed.disk(random)
        disk.cut_at = boundary
        try:
            crashed.open(disk)
        except PowerCutError:
            yield disk.after_power_cut(random, keep=share)
        else:
            return


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("share", SHARES_KEPT)
def test_interrupted_recovery_repeats_with_same_result(
    tmp_path: Path, damage: Callable[[Crashed], None], share: float
) -> None:
    crashed = Crashed(tmp_path)
    damage(crashed)
    undisturbed = crashed.disk(Random(1))
    store = crashed.open(undisturbed)
    assert store.recovery is not None
    assert not store.recovery.clean
    assert bool(store.recovery.damage) == (damage is not torn_tail)
    assert bool(store.recovery.truncated_bytes) == (damage is not lost_units)
    assert bool(store.recovery.units_added) == (damage in {lost_units, all_of_it})
    wanted = crashed.contents(undisturbed)
    damaged = crashed.damaged(store.recovery.damage)
    boundaries = 0
    for disk in cuts(crashed, share):
        crashed.open(disk)
        assert crashed.contents(disk) == wanted, f"cut at boundary {boundaries + 1}"
        assert damaged <= set(disk.content().values()), f"cut at boundary {boundaries + 1}: no copy of it"
        boundaries += 1
    assert boundaries > 10
