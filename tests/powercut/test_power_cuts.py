"""Seeded power cuts; ``python -m tests.powercut --seeds 10000`` runs more, ``--seed N`` one again."""

import inspect
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.powercut.__main__ import main
from tests.powercut.life import Life
from tests.powercut.model_disk import SECTOR, ModelDisk
from triomq.storage.files.file_system import FileSystem
from triomq.storage.files.mapped_file_queue import FoundFiles
from triomq.storage.recovery.recovery import Recovery
from triomq.storage.retention import Deletion, Retention

SEEDS = range(100_000, 100_400)
#: A cut while the start settles what the last cut has left of a transaction, and a half message at a former offset.
FAILED_ONCE = (501_579, 708_169)
EXHAUSTIVE_SEEDS = 4
#: First seeds for planted faults that only one life in hundreds shows.
FIRST_SEEDS = {"flush_delivered": 300}


@pytest.mark.timeout(600)
def test_power_cuts_lose_and_invent_no_messages(tmp_path: Path) -> None:
    cuts = acknowledged = 0
    for seed in (*FAILED_ONCE, *SEEDS):
        try:
            life = Life(seed, tmp_path).run()
        except Exception as exc:
            raise AssertionError(f"python -m tests.powercut --seed {seed}") from exc
        cuts += life.cuts
        acknowledged += life.acknowledged
    assert cuts > len(SEEDS)
    assert acknowledged > len(SEEDS)


def test_power_cut_at_every_file_operation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--every", "--seeds", str(EXHAUSTIVE_SEEDS)]) == 0
    lives_run = int(capsys.readouterr().out.partition(": ")[2].partition(" lives")[0])
    assert lives_run > 50 * EXHAUSTIVE_SEEDS


def test_failing_seed_is_reported_with_its_replay_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def planted(_: Life) -> None:
        raise AssertionError("planted")

    monkeypatch.setattr(Life, "_learn", planted)
    assert main(["--seeds", "1", "--start", "7"]) == 1
    printed = capsys.readouterr().out
    assert "seed 7 failed: planted\n  python -m tests.powercut --seed 7\n" in printed
    assert "1 lives failed" in printed


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("owner", "name", "planted"),
    [
        (ModelDisk, "sync_file", lambda self, file: None),
        (ModelDisk, "sync_directory", lambda self, path: None),
        (Recovery, "_sync", lambda self, begin: None),
        (Recovery, "_heal", lambda self, scan: None),
        (Deletion, "finish", lambda self: True),
        (Retention, "correct_queues", lambda self, queues: None),
        (Life, "flush_delivered", lambda self: None),
        (FoundFiles, "__new__", lambda cls, *found: tuple.__new__(cls, (found[0], [], []))),
    ],
)
def test_store_without_a_sync_is_detected(
    owner: type, name: str, planted: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, planted)
    first = FIRST_SEEDS.get(name, 0)
    for seed in range(first, first + (2000 if name in {"finish", "flush_delivered"} else 200)):
        life = Life(seed, tmp_path)
        try:
            life.run()
        except Exception:  # noqa: BLE001  # however the store fails
            life.store._directory.release()
            return
    pytest.fail("nothing was noticed")


def test_the_model_disk_answers_every_call_itself() -> None:
    calls = {name for name, _ in inspect.getmembers(FileSystem, inspect.isfunction) if not name.startswith("_")}
    assert calls <= set(vars(ModelDisk))


def test_model_disk_drops_unsynced_data_in_whole_sectors(tmp_path: Path) -> None:
    disk = ModelDisk(tmp_path, Random(1))
    file = disk.create_file(tmp_path / "scratch", 4 * SECTOR, tmp_path / "file")
    disk.rename(tmp_path / "scratch", tmp_path / "file")
    disk.sync_file(file)
    disk.sync_directory(tmp_path)
    mapping = disk.map_file(file, 4 * SECTOR)
    mapping[:] = b"x" * (4 * SECTOR)
    assert disk.read_file(tmp_path / "file") == b"x" * (4 * SECTOR)
    found = {disk.after_power_cut(Random(seed)).read_file(tmp_path / "file") for seed in range(400)}
    sectors = {content[at : at + SECTOR] for content in found for at in range(0, 4 * SECTOR, SECTOR)}
    assert sectors == {bytes(SECTOR), b"x" * SECTOR}
    assert len(found) == 2**4


def test_model_disk_forgets_unsynced_names(tmp_path: Path) -> None:
    disk = ModelDisk(tmp_path, Random(1))
    disk.write_file(tmp_path / "old", b"old")
    disk.sync_directory(tmp_path)
    disk.write_file(tmp_path / "new", b"new")
    disk.unlink(tmp_path / "old")
    found = [disk.after_power_cut(Random(seed)) for seed in range(100)]
    assert {tuple(entry.name for entry in after.list_directory(tmp_path)) for after in found} == {
        (),
        ("new",),
        ("old",),
        ("new", "old"),
    }
