import pytest

from tests.chaos.member import Attempt
from tests.chaos.plan import KEYS, course_for
from tests.chaos.transactions import TransactionVerdict, figures, judge_transactions
from tests.chaos.transactor import Record, Step
from triomq.client import TransactionState

NUMBER = 7
STORED = (Step.SENT, Step.STORED)
COMMITTED = (*STORED, Step.COMMIT)


def attempt(at_ns: int = 9, *, succeeded: bool = True, failures: int = 0, place: int = 0, key: int = KEYS) -> Attempt:
    return Attempt("a", key + NUMBER, 0, succeeded, 0, place, failures, "id", at_ns, at_ns + 1)


def verdict(*attempts: Attempt, steps: tuple[Step, ...] = COMMITTED, is_dead: bool = False) -> TransactionVerdict:
    """The steps were taken at the times 1, 2 and so on."""
    records = [Record(NUMBER, step, at_ns) for at_ns, step in enumerate(steps, 1)]
    return judge_transactions(records, attempts, [(KEYS + NUMBER, 0)] if is_dead else [])


@pytest.mark.parametrize(
    "found",
    [
        verdict(attempt()),
        verdict(attempt(succeeded=False), attempt(failures=1, place=5)),  # its place in the retry topic
        verdict(
            attempt(), attempt()
        ),  # the acknowledgement was lost: another judge decides whether it may be redelivered
        verdict(attempt(succeeded=False), is_dead=True),
        verdict(steps=(*STORED, Step.ROLLBACK)),
        verdict(steps=(*STORED, Step.UNKNOWN)),
        verdict(steps=(Step.SENT,)),  # unknown whether its half message was stored
        verdict(attempt(), steps=(Step.SENT, Step.COMMIT)),  # it was: the broker has asked
        verdict(attempt(key=0), steps=()),  # no transaction
    ],
)
def test_what_must_hold_is_good(found: TransactionVerdict) -> None:
    assert found.is_good, found


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (verdict(attempt(), steps=(*STORED, Step.ROLLBACK)), "uncommitted"),
        (verdict(attempt(succeeded=False), steps=(*STORED, Step.ROLLBACK)), "uncommitted"),
        (verdict(attempt(), steps=(*STORED, Step.UNKNOWN)), "uncommitted"),
        (verdict(attempt(), steps=()), "uncommitted"),
        (verdict(attempt(at_ns=2)), "uncommitted"),  # the decision came later
        (verdict(steps=(*STORED, Step.ROLLBACK), is_dead=True), "uncommitted"),
        (verdict(), "lost"),
        (verdict(steps=(*COMMITTED, Step.ANSWERED)), "lost"),
        (verdict(attempt(succeeded=False)), "lost"),
        (verdict(attempt(), attempt(place=1)), "repeated"),
        (verdict(steps=STORED), "forgotten"),
    ],
)
def test_what_must_not_be_is_found(found: TransactionVerdict, complaint: str) -> None:
    assert not found.is_good
    assert [name for name, own in found._asdict().items() if own == [NUMBER]] == [complaint]


def test_figures_count_each_transaction_once() -> None:
    records = [Record(1, Step.COMMIT, 1), Record(1, Step.COMMIT, 2), Record(2, Step.COMMIT, 3)]
    assert "commit 2, rollback 0" in figures(records)


def test_a_producer_never_changes_its_mind() -> None:
    courses = [course_for(0, number) for number in range(1000)]
    assert all(course.first in (course.last, TransactionState.UNKNOWN) for course in courses)
    assert {course.last for course in courses} == {*TransactionState}
    assert any(course.is_deadly for course in courses)
    assert any(course.slow_s for course in courses)
