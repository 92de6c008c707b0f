from collections.abc import Sequence

import pytest

from tests.chaos.judge import Cause, Happening, Verdict, judge, table
from tests.chaos.member import Attempt
from tests.chaos.plan import MAX_FAILURES, Action, Mode

SECOND = 10**9


def attempt(
    number: int,
    at_s: float,
    *,
    member: str = "a",
    succeeded: bool = True,
    failures: int = 0,
    message_id: str = "",
    key: int = 0,
    queue_offset: int | None = None,
    queue_id: int = 0,
) -> Attempt:
    """An attempt of a tenth of a second; the queue has the messages of key 0."""
    begun_ns = int(at_s * SECOND)
    offset = number if queue_offset is None else queue_offset
    identity = message_id or f"{key}-{number}"
    return Attempt(
        member, key, number, succeeded, queue_id, offset, failures, identity, begun_ns, begun_ns + SECOND // 10
    )


def happening(action: Action, at_s: float, member: str = "", lasts_s: float = 1.0) -> Happening:
    return Happening(action, member, int(at_s * SECOND), (at_s + lasts_s) * SECOND)


def verdict(
    *attempts: Attempt, mode: Mode = Mode.ORDERLY, happenings: Sequence[Happening] = (), tries: int = 1
) -> Verdict:
    sent = {(one.key, one.number): tries for one in attempts}
    return judge(mode, sent, attempts, (), happenings)


def test_handled_once_and_in_order_passes() -> None:
    found = verdict(attempt(0, 1), attempt(1, 2), attempt(2, 3))
    assert (found.handled, found.is_good) == (3, True)


@pytest.mark.parametrize("mode", Mode)
def test_unhandled_acknowledged_message_counts_as_lost(mode: Mode) -> None:
    found = judge(
        mode, {(0, 0): 1, (0, 1): 1, (0, 2): 1}, [attempt(0, 1), attempt(1, 2, succeeded=False)], [(0, 2)], []
    )
    assert found.lost == [(0, 1)]
    assert not found.is_good


def test_message_handled_before_predecessor_is_out_of_order() -> None:
    late, early = attempt(0, 2), attempt(1, 1)
    assert verdict(late, early).out_of_order == [(late, early)] * 2  # of the key, and of the queue
    assert not verdict(late, early).is_good
    assert verdict(late, early, mode=Mode.CONCURRENT).is_good


def test_handlers_of_neighbours_must_not_overlap() -> None:
    assert not verdict(attempt(0, 1), attempt(1, 1.05)).is_good


def test_keys_of_one_queue_keep_its_order() -> None:
    first, second = attempt(0, 2, queue_offset=7), attempt(0, 1, key=8, queue_offset=8)
    assert verdict(first, second).out_of_order == [(first, second)]


def test_key_is_unordered_across_queues_after_failover() -> None:
    assert verdict(attempt(0, 2), attempt(1, 1, queue_id=1)).is_good


def test_successor_is_allowed_only_after_final_failure() -> None:
    again = attempt(0, 3, failures=1)
    assert not verdict(attempt(0, 1, succeeded=False), attempt(1, 2), again).is_good
    given_up = attempt(0, 1, succeeded=False, failures=MAX_FAILURES)
    assert judge(Mode.ORDERLY, {}, [given_up, attempt(1, 2)], [(0, 0)], []).is_good


def test_a_replay_is_not_out_of_order() -> None:
    killed = happening(Action.KILL, 2.5, "a")
    replayed = [attempt(0, 1), attempt(1, 2), attempt(0, 3, member="b"), attempt(1, 4, member="b")]
    found = verdict(*replayed, happenings=[killed])
    assert (found.out_of_order, found.duplicates, found.is_good) == ([], {Cause.KILLED: 2}, True)


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        (happening(Action.KILL, 2, "a"), Cause.KILLED),
        (happening(Action.KILL, 2, "c"), Cause.MOVED),
        (happening(Action.KILL, 4, "a"), Cause.UNEXPLAINED),
        (happening(Action.CRASH, 2), Cause.CRASHED),
        (happening(Action.RESTART, 0.5), Cause.RESTARTED),
        (happening(Action.LEAVE, 2, "a"), Cause.LEFT),
        (happening(Action.JOIN, 2, "b"), Cause.MOVED),
        (happening(Action.JOIN, -10, "b"), Cause.UNEXPLAINED),
    ],
)
def test_each_repetition_has_the_cause_that_lies_near(what: Happening, cause: Cause) -> None:
    twice = attempt(0, 1), attempt(0, 3, member="b")
    assert verdict(*twice, mode=Mode.CONCURRENT, happenings=[what]).duplicates == {cause: 1}
    allowed = cause if cause in (Cause.KILLED, Cause.CRASHED, Cause.RESTARTED) else Cause.UNEXPLAINED
    assert verdict(*twice, happenings=[what]).duplicates == {allowed: 1}


def test_two_copies_need_a_repeated_send() -> None:
    twice = attempt(0, 1, message_id="x"), attempt(0, 2, message_id="y", queue_offset=1)
    assert verdict(*twice, tries=2).duplicates == {Cause.RESENT: 1}
    assert not verdict(*twice).is_good


def test_message_may_be_redelivered_beside_its_retry() -> None:
    def failed(times: int, *happenings: Happening) -> Verdict:
        attempts = [attempt(0, at_s, succeeded=False) for at_s in range(times)]
        attempts += [attempt(0, 5, failures=1), attempt(0, 6, failures=1)]
        return verdict(*attempts, mode=Mode.CONCURRENT, happenings=happenings)

    assert failed(2).duplicates == {Cause.RETRIED: 1}
    assert failed(1, happening(Action.JOIN, 4, "b")).duplicates == {Cause.RETRIED: 1}
    assert failed(1, happening(Action.JOIN, 0.5, "b", 0.1)).duplicates == {Cause.UNEXPLAINED: 1}
    assert failed(1, happening(Action.CRASH, 0.5, "", 0.1)).duplicates == {Cause.RETRIED: 1}  # sent it back again
    assert failed(1).duplicates == {Cause.UNEXPLAINED: 1}


def test_the_table_has_a_column_for_each_group() -> None:
    lines = table({Mode.CONCURRENT: verdict(attempt(0, 1)), Mode.ORDERLY: verdict()}).splitlines()
    assert lines[0].split() == ["concurrent", "orderly"]
    assert lines[1].split() == ["messages", "handled", "1", "0"]
