"""A short run; ``python -m tests.chaos`` is the long one."""

from pathlib import Path

import pytest

from tests.chaos.__main__ import describe
from tests.chaos.chaos import Chaos, Settings
from tests.chaos.plan import Action, Event, Mode, plan_events

SEED = 2
SECONDS = 3.0


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("brokers", "seed"), [(1, SEED), (2, 11)])
def test_groups_lose_and_reorder_nothing_during_churn(brokers: int, seed: int, tmp_path: Path) -> None:
    with Chaos(tmp_path, Settings(seed, SECONDS, 960, 300, brokers)) as chaos:
        outcome = chaos.run()
    assert outcome.is_good, describe(outcome)
    assert outcome.acknowledged == 960
    assert outcome.happenings.keys() == {*Action}
    assert all(verdict.delivered for verdict in outcome.transaction_verdicts.values())


def test_a_seed_decides_the_plan() -> None:
    plan = plan_events(SEED, 60, [*Mode])
    assert plan == plan_events(SEED, 60, [*Mode])
    assert plan != plan_events(SEED + 1, 60, [*Mode])
    assert {event.action for event in plan} == {*Action}


@pytest.mark.parametrize("seed", range(20))
def test_plan_never_stops_whole_group(seed: int) -> None:
    members = {mode: {0, 1} for mode in Mode}
    for event in plan_events(seed, 60, [*Mode]):
        _apply(event, members[event.mode])
        assert all(members.values())


def _apply(event: Event, own: set[int]) -> None:
    if event.action is Action.JOIN:
        assert event.number not in own
        own.add(event.number)
    elif not event.action.is_of_broker:
        own.remove(event.number)
