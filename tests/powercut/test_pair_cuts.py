"""Seeded power cuts of a sync-master and its slave; ``python -m tests.powercut --pair --seeds 1000`` runs more."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.powercut.pair import PairLife
from triomq.broker.replication.comparison import Comparison
from triomq.broker.replication.slave import Slave
from triomq.broker.services.group_commit import GroupCommit

SEEDS: Final = range(200_000, 200_040)
#: First seeds for planted faults that only one life in a hundred shows.
FIRST_SEEDS: Final = {"_safe_end": 45}


@pytest.mark.timeout(600)
def test_power_cuts_of_pair_lose_nothing_acknowledged(tmp_path: Path) -> None:
    cuts = acknowledged = tails = 0
    for seed in SEEDS:
        try:
            life = PairLife(seed, tmp_path).run()
        except Exception as exc:
            raise AssertionError(f"python -m tests.powercut --pair --seed {seed}") from exc
        cuts += life.cuts
        acknowledged += life.acknowledged
        tails += life.tails_aside
    assert cuts > len(SEEDS)
    assert acknowledged > len(SEEDS)
    assert tails


def _succeed(commit: GroupCommit, entry: Any) -> None:
    commit._succeed(entry, 0.0)


async def _compare_nothing(comparison: Comparison) -> None:
    """Let the slave keep the end that its master has lost."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("owner", "name", "planted"),
    [
        (GroupCommit, "_await_slave", _succeed),
        (GroupCommit, "_needs_disk", property(lambda commit: False, lambda commit, needs: None)),
        (Slave, "_safe_end", property(lambda slave: slave._replica.end)),
        (Comparison, "begin", _compare_nothing),
    ],
)
def test_pair_without_a_precaution_is_detected(
    owner: type, name: str, planted: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, planted, raising=False)
    first = FIRST_SEEDS.get(name, 0)
    for seed in range(first, first + 300):
        life = PairLife(seed, tmp_path)
        try:
            life.run()
        except Exception:  # noqa: BLE001  # however it fails
            life.release()
            return
    pytest.fail("nothing was noticed")
