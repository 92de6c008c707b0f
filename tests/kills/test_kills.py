"""Real kills; ``python -m tests.kills --kills 50`` does more."""

from pathlib import Path

import pytest

from tests.kills.killing import kill_often


@pytest.mark.timeout(180)
@pytest.mark.parametrize("durability", ["async", "sync"])
def test_everything_acknowledged_is_delivered_after_kills(tmp_path: Path, durability: str) -> None:
    """C.2 scenario 66."""
    outcome = kill_often(tmp_path, kills=2, seed=1, durability=durability)
    assert outcome.missing == []
    assert outcome.acknowledged > 20
    assert outcome.delivered >= outcome.acknowledged
