"""Real kills; ``python -m tests.kills --kills 50``, with ``--pair``, and ``--half-messages 20`` do more."""

from pathlib import Path

import pytest

from tests.kills.killing import kill_often, kill_with_half_message
from tests.kills.pair import kill_pair_often


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("durability", "disk_delay"),
    [("async", 0), ("sync", 0), ("sync", 20), pytest.param("sync", 200, marks=pytest.mark.slow)],
    indirect=["disk_delay"],
)
@pytest.mark.usefixtures("disk_delay")
def test_everything_acknowledged_is_delivered_after_kills(tmp_path: Path, durability: str) -> None:
    """C.2 scenario 66."""
    outcome = kill_often(tmp_path, kills=2, seed=1, durability=durability)
    assert outcome.faults == []
    assert outcome.acknowledged > 20
    assert outcome.delivered >= outcome.acknowledged


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("disk_delay")
def test_check_commits_transaction_after_kill(tmp_path: Path) -> None:
    checks = kill_with_half_message(tmp_path, "sync")
    assert checks == list(range(1, len(checks) + 1))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("durability", ["async", "sync"])
def test_pair_has_all_acknowledged_twice_after_kills(tmp_path: Path, durability: str) -> None:
    outcome = kill_pair_often(tmp_path, kills=3, seed=2, durability=durability)
    assert outcome.faults == []
    assert outcome.acknowledged > 20
    assert outcome.delivered >= outcome.acknowledged
