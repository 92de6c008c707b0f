"""Power cuts while the end of a log is set aside: the store is as before or cut, and no message is lost."""

from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.powercut.expected import units
from tests.powercut.model_disk import ModelDisk, PowerCutError
from tests.powercut.test_replica_cuts import config
from tests.unit.storage.making import HOST
from triomq.storage.append import entry
from triomq.storage.aside import set_aside
from triomq.storage.commit_log.log_scan import FILLER_TOPIC, LogScan
from triomq.storage.message_store import MessageStore

SEEDS: Final = range(60)
_MESSAGES: Final = 25
_CUTS: Final = 3

Records = dict[int, tuple[str, int, int]]


class Cut:
    """One seed: a store of which an end is set aside while the power fails some times."""

    def __init__(self, seed: int, base: Path) -> None:
        self.random = Random(seed)
        self.disk = ModelDisk(base, self.random)
        self.config = config(base / "store")
        self.cuts = 0
        self.config.root.mkdir(parents=True)  # for the locks, which are real ones
        with self.store() as store:
            for _ in range(_MESSAGES):
                queue = store.queue(self.random.choice("TU"), self.random.randrange(2))
                body = self.random.randbytes(self.random.choice((1, 600, 3000)))
                store.append([entry(queue, body, b"KEYS\x01k", born_host=HOST, store_host=HOST)])
            self.end = store.commit_log.max_offset
            self.everything = records(store)
        self.begin = self.random.choice(list(self.everything)[1:])
        self.name = f"{self.begin}-{self.end}"
        (self.config.root / "aside" / self.name).mkdir(parents=True)

    def store(self, root: Path | None = None) -> MessageStore:
        settings = config(root) if root is not None else self.config
        return MessageStore(settings, file_system=self.disk)

    def run(self) -> None:
        for _ in range(_CUTS):
            self.disk.cut_later(1 + int(self.random.expovariate(1 / 60)))
            try:
                self.cut_log()
            except PowerCutError:
                self.cuts += 1
            self.disk = self.disk.after_power_cut(self.random)
        self.compare()
        self.cut_log()
        assert self.compare()

    def cut_log(self) -> None:
        """Set the end aside, unless that is done, and open the store, which does the work."""
        if not self.disk.exists(self.config.root / "aside" / self.name):  # made after the decision
            set_aside(self.config, self.begin, self.end, self.disk)
        store = self.store()
        store.open()
        store._directory.release()

    def compare(self) -> bool:
        """Return whether the log was cut; it has its messages, and the folder of the end has all others."""
        with self.store() as store:
            found = records(store)
            assert units(store, 0, self.end).keys() == {row[:3] for row in found.values()}
        is_cut = found != self.everything
        if is_cut:
            assert found == {place: row for place, row in self.everything.items() if place < self.begin}
            with self.store(self.config.root / "aside" / self.name) as tail:
                rest = records(tail)
                assert units(tail, 0, self.end).keys() == {row[:3] for row in rest.values()}
            assert rest == {place: row for place, row in self.everything.items() if place >= self.begin}
        return is_cut


def records(store: MessageStore) -> Records:
    """All messages of the log, by their places."""
    scan = LogScan(store.commit_log, max(store.commit_log.min_offset, 0), stop=store.commit_log.max_offset)
    found = {
        place: (row.topic, row.queue_id, int(row.queue_offset)) for place, row in scan if row.topic != FILLER_TOPIC
    }
    assert not scan.damage
    return found


@pytest.mark.timeout(600)
def test_power_cuts_while_end_is_set_aside(tmp_path: Path) -> None:
    cuts = 0
    for seed in SEEDS:
        one = Cut(seed, tmp_path / str(seed))
        try:
            one.run()
        except Exception as exc:
            raise AssertionError(f"seed {seed}") from exc
        cuts += one.cuts
    assert cuts > len(SEEDS)
