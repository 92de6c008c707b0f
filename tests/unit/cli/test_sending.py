import math
from collections import defaultdict
from collections.abc import Callable
from typing import cast

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from triomq.cli.sending import Batch, Histogram, InFlight, OrderedSender, Pacer, Stopper, Tally, summary_line
from triomq.client import MessageQueue, Producer, SendResult, SendStatus
from triomq.protocol.errors import (
    ConnectionLostError,
    MessageIllegalError,
    NoRouteError,
    RequestTimeoutError,
    TriomqError,
)
from triomq.protocol.record.message import Message


async def test_the_stopper_ends_waiting_only(autojump_clock: MockClock) -> None:
    stopper = Stopper()
    ended: list[str] = []

    async def wait() -> None:
        with stopper.waiting():
            await trio.sleep(math.inf)
        ended.append("waiting")

    async def work() -> None:
        await trio.sleep(5)
        ended.append("work")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        nursery.start_soon(work)
        await wait_all_tasks_blocked()
        stopper.set()
        await wait_all_tasks_blocked()
        assert ended == ["waiting"]
    assert ended == ["waiting", "work"]
    with stopper.waiting():
        await trio.sleep(math.inf)
    assert stopper.is_set


@pytest.mark.parametrize(("rate", "messages", "times", "seconds"), [(10, 1, 21, 2), (10, 20, 2, 2), (None, 1, 1000, 0)])
async def test_a_pacer_limits_the_messages_per_second(
    autojump_clock: MockClock, rate: float | None, messages: int, times: int, seconds: float
) -> None:
    pacer = Pacer(rate, Stopper())
    began = trio.current_time()
    for _ in range(times):
        await pacer.wait(messages)
    assert trio.current_time() - began == pytest.approx(seconds)


async def test_time_without_input_is_not_made_up_for(autojump_clock: MockClock) -> None:
    pacer = Pacer(10, Stopper())
    await pacer.wait(1)
    await trio.sleep(60)
    began = trio.current_time()
    for _ in range(11):
        await pacer.wait(1)
    assert trio.current_time() - began >= 0.9


async def test_a_waiting_pacer_ends_with_the_stopper(autojump_clock: MockClock) -> None:
    stopper = Stopper()
    pacer = Pacer(0.001, stopper)
    await pacer.wait(1)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pacer.wait, 1)
        await wait_all_tasks_blocked()
        stopper.set()
    assert trio.current_time() == began


REQUESTS = 20_000


@pytest.mark.parametrize(
    ("round_trip_s", "service_s", "limits", "tasks", "least_rate"),
    [
        (0.05, 0.0001, {}, (500, 1500), 7500),  # 500 keep the server busy
        (0.0, 0.0001, {}, (32, 32), 9900),
        (0.05, 0.0001, {"fixed": 10}, (10, 10), 190),
        (0.05, 0.0001, {"request_bytes": 1024**2}, (64, 64), 1200),
        (2.0, 0.00001, {}, (700, 2048), 250),
    ],
)
async def test_tasks_grow_until_server_is_busy(
    autojump_clock: MockClock,
    round_trip_s: float,
    service_s: float,
    limits: dict[str, int],
    tasks: tuple[int, int],
    least_rate: float,
) -> None:
    left, busy_until = iter(range(REQUESTS)), 0.0

    async def work(answered: Callable[[float], None]) -> None:
        nonlocal busy_until
        for _ in left:
            began = trio.current_time()
            busy_until = max(began, busy_until) + service_s  # one request after another
            await trio.sleep_until(busy_until + round_trip_s)
            answered(trio.current_time() - began)

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        in_flight = InFlight(lambda answered: nursery.start_soon(work, answered), **limits)
    assert tasks[0] <= in_flight.tasks <= tasks[1]
    assert REQUESTS / (trio.current_time() - began) >= least_rate


QUEUE = MessageQueue("T", "b", 0)


class FakeProducer:
    """Stores all messages, unless ``refuse`` has an error for a request."""

    def __init__(self, refuse: Callable[[list[Message]], TriomqError | None]) -> None:
        self.stored: dict[MessageQueue | None, list[int]] = defaultdict(list)
        self.requests: list[int] = []
        self.refuse = refuse

    async def send(self, message: Message, *, queue: MessageQueue | None) -> SendResult:
        await self.send_batch([message], queue=queue)
        return SendResult(SendStatus.SEND_OK, "ID", "PLACE", queue or MessageQueue("T", "broker-a", 0), 0)

    async def send_batch(self, messages: list[Message], *, queue: MessageQueue | None) -> None:
        await trio.lowlevel.checkpoint()
        self.requests.append(len(messages))
        error = self.refuse(messages)
        if error is not None:
            raise error
        self.stored[queue] += [int(message.body.split()[0]) for message in messages]


def batch(first: int, count: int, size: int = 0) -> Batch:
    numbers = list(range(first, first + count))
    return Batch([Message("T", str(number).encode() + b" " * size) for number in numbers], numbers)


def make(producer: FakeProducer, *, keep_going: bool = False) -> tuple[OrderedSender, Tally, Stopper]:
    tally, stopper = Tally(), Stopper()
    return OrderedSender(cast(Producer, producer), stopper, tally, keep_going=keep_going), tally, stopper


def failing_times(times: int, error: TriomqError) -> Callable[[list[Message]], TriomqError | None]:
    left = [error] * times
    return lambda _messages: left.pop() if left else None


async def test_later_lines_wait_for_a_retry(autojump_clock: MockClock) -> None:
    producer = FakeProducer(failing_times(2, ConnectionLostError("gone")))
    sender, tally, _ = make(producer)
    await sender.send(batch(1, 3), QUEUE)
    await sender.send(batch(4, 2), QUEUE)
    assert producer.stored == {QUEUE: [1, 2, 3, 4, 5]}
    assert (tally.sent, tally.failed, tally.unanswered) == (5, 0, 0)


async def test_retries_end_after_three_seconds(autojump_clock: MockClock) -> None:
    sender, tally, stopper = make(FakeProducer(lambda _: ConnectionLostError("gone")))
    began = trio.current_time()
    await sender.send(batch(7, 3), QUEUE)
    assert 1 < trio.current_time() - began <= 3
    assert (tally.failed, tally.unanswered, stopper.is_set) == (3, 0, True)
    assert tally.error_text == "lines 7 to 9: gone"


async def test_an_unknown_outcome_is_not_tried_again() -> None:
    producer = FakeProducer(lambda _: RequestTimeoutError("late"))
    await make(producer)[0].send(batch(1, 2), QUEUE)
    assert producer.requests == [2]


def refuses(*numbers: int) -> Callable[[list[Message]], TriomqError | None]:
    def refuse(messages: list[Message]) -> TriomqError | None:
        bad = [message for message in messages if int(message.body.split()[0]) in numbers]
        return MessageIllegalError("too long") if bad else None

    return refuse


async def test_a_refused_message_costs_only_itself() -> None:
    producer = FakeProducer(refuses(3, 5))
    sender, tally, stopper = make(producer, keep_going=True)
    await sender.send(batch(1, 6), QUEUE)
    assert producer.stored == {QUEUE: [1, 2, 4, 6]}
    assert (tally.failed, tally.error_text, stopper.is_set) == (2, "line 3: too long", False)


async def test_first_rejection_stops_sending_after_earlier_messages() -> None:
    producer = FakeProducer(refuses(3))
    sender, tally, _ = make(producer)
    await sender.send(batch(1, 6), QUEUE)
    assert producer.stored == {QUEUE: [1, 2]}
    assert (tally.sent, tally.failed, tally.unsent) == (2, 1, 3)


async def test_nothing_is_sent_after_the_stop() -> None:
    producer = FakeProducer(lambda _: None)
    sender, tally, stopper = make(producer)
    stopper.set()
    await sender.send(batch(1, 6), QUEUE)
    assert (producer.requests, tally.unsent) == ([], 6)


async def test_a_cancelled_request_is_unanswered() -> None:
    sender, tally, _ = make(FakeProducer(lambda _: None))
    with trio.CancelScope() as scope:
        scope.cancel()
        await sender.send(batch(1, 6), QUEUE)
    assert (tally.sent, tally.unanswered) == (0, 6)


@pytest.mark.parametrize(
    ("sizes", "requests"),
    [([9, 4096, 9, 9], [1, 1, 2]), ([4096] * 5, [1] * 5), ([4095] * 5, [5]), ([1503] * 2000, [1041, 959])],
)
async def test_requests_are_limited_and_large_bodies_go_alone(sizes: list[int], requests: list[int]) -> None:
    producer = FakeProducer(lambda _: None)
    messages = [Message("T", str(number).ljust(size).encode()) for number, size in enumerate(sizes)]
    await make(producer)[0].send(Batch(messages, []), QUEUE)
    assert (producer.requests, producer.stored[QUEUE]) == (requests, list(range(len(sizes))))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["ok", "lost", "timeout", "illegal"]), max_size=40), st.booleans())
def test_queues_keep_the_order_despite_failures(outcomes: list[str], keep_going: bool) -> None:
    errors = {"lost": ConnectionLostError, "timeout": RequestTimeoutError, "illegal": MessageIllegalError}
    left = outcomes[:]

    def refuse(_messages: list[Message]) -> TriomqError | None:
        outcome = left.pop() if left else "ok"
        return None if outcome == "ok" else errors[outcome](outcome)

    producer = FakeProducer(refuse)
    queues = [MessageQueue("T", "b", queue_id) for queue_id in range(3)]

    async def run() -> Tally:
        sender, tally, _ = make(producer, keep_going=keep_going)

        async def work(number: int) -> None:
            for first in range(1 + 10 * number, 300, 30):
                await sender.send(batch(first, 10), queues[number])

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(work, number)
        return tally

    tally = trio.run(run, clock=MockClock(autojump_threshold=0))
    for stored in producer.stored.values():
        assert stored == sorted(set(stored))
    assert tally.sent == sum(map(len, producer.stored.values()))
    assert (tally.sent + tally.failed + tally.unsent, tally.unanswered) == (300, 0)


@given(st.lists(st.floats(1e-5, 1e4), min_size=1, max_size=200), st.sampled_from([1.0, 50.0, 90.0, 99.0, 100.0]))
def test_percentile_is_close_to_the_exact_one(durations: list[float], percent: float) -> None:
    histogram = Histogram()
    for duration in durations:
        histogram.add(duration)
    exact = sorted(durations)[max(0, -int(-len(durations) * percent // 100) - 1)]
    found_ms = histogram.percentile_ms(percent)
    assert found_ms is not None
    assert exact * 1000 * (1 - 1e-9) - 0.0005 <= found_ms <= exact * 1023 + 0.0005
    assert histogram.longest_s == max(durations)


def test_a_duration_may_count_many_times() -> None:
    histogram = Histogram()
    histogram.add(0.001, 99)
    histogram.add(1.0)
    assert histogram.count == 100
    assert histogram.percentile_ms(99) == pytest.approx(1, rel=0.023)
    assert histogram.percentile_ms(100) == 1000


async def test_summary_reports_sent_and_failed_counts_and_latency(autojump_clock: MockClock) -> None:
    tally = Tally()
    await trio.sleep(2)
    tally.succeeded([Message("T", b"abc"), Message("T", b"de")], 0.5)
    tally.failed_with(NoRouteError("no T\nthere"), 3, "lines 3 to 5: ")
    tally.failed_with(NoRouteError("later"))
    tally.unanswered = 1
    tally.unsent = 8
    summary = tally.summary("T", 7)
    assert summary == {
        "topic": "T",
        "sent": 2,
        "failed": 4,
        "unsent": 8,
        "unanswered": 1,
        "skipped_blank_lines": 7,
        "bytes": 5,
        "seconds": 2.0,
        "messages_per_s": 1,
        "requests": 1,
        "p50_ms": 500.0,
        "p99_ms": 500.0,
        "error": "lines 3 to 5: no T there",
        "recall_handle": None,
    }
    assert summary_line(summary) == (
        "sent 2 messages, 5 bytes, in 2.00 s: 1/s, p50 500.0 ms, p99 500.0 ms; 4 failed; 8 read but not sent; "
        "1 without an answer: perhaps stored; skipped 7 blank lines\n"
    )


async def test_summary_of_delayed_message_has_recall_command() -> None:
    tally = Tally()
    tally.succeeded([Message("T", b"a")], 0.5, "HANDLE")
    assert summary_line(tally.summary("T", 0)).startswith("sent 1 message, 1 byte, in ")
    assert "\ntake it back with: triomq message recall HANDLE\n" in summary_line(tally.summary("T", 0))
    tally.succeeded([Message("T", b"a")], 0.5, "OTHER")
    assert "recall" not in summary_line(tally.summary("T", 0))


async def test_a_summary_of_nothing_has_no_rate() -> None:
    summary = Tally().summary("T", 1)
    assert (summary["messages_per_s"], summary["p50_ms"], summary["error"]) == (None, None, None)
    assert summary_line(summary) == "sent 0 messages, 0 bytes, in 0.00 s; skipped 1 blank line\n"


@pytest.mark.parametrize(("rate", "printed"), [(10, "10/s"), (None, "12/s"), (0.5, "0.5/s")])
async def test_rate_of_few_messages_counts_from_first(
    autojump_clock: MockClock, rate: float | None, printed: str
) -> None:
    tally = Tally()
    await trio.sleep(60)  # connecting
    for _ in range(5):
        tally.sending(1)
        tally.succeeded([Message("T", b"a")], 0.0)
        tally.unanswered -= 1
        await trio.sleep(0.1)
    assert f", in 0.40 s: {printed}" in summary_line(tally.summary("T", 0, rate))
