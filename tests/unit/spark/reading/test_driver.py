"""Scenarios 15 to 22, 26, 38, 41 and 43 of spark.md 6, as decisions of the driver without Spark or broker."""

import json
from typing import Any, cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from triomq.client.sync import PullConsumer
from triomq.protocol.errors import (
    ConfigError,
    ConnectError,
    DataLossError,
    NameServerError,
    RequestTimeoutError,
    TriomqError,
)
from triomq.protocol.message_queue import MessageQueue
from triomq.spark.connections import Retry
from triomq.spark.options.options import Use, parse_options
from triomq.spark.reading.discovery import Bounds, Discovery, QueueBounds
from triomq.spark.reading.driver import MicroBatchReader
from triomq.spark.reading.planning import StreamOffset, ranges_between

Q0, Q1, Q2 = (MessageQueue("T", "a", number) for number in range(3))
AWAY = MessageQueue("T", "b", 0)


class FakeBrokers:
    """The brokers as a driver sees them: queues, bounds, times and stored offsets."""

    def __init__(self) -> None:
        self.queue_bounds: dict[MessageQueue, tuple[int, int]] = {Q0: (0, 100), Q1: (0, 50)}
        self.errors: dict[str, TriomqError] = {}
        self.lookup_error: TriomqError | None = None
        self.first_ms = 0
        self.polls = 0
        self.lookups = 0
        self.tries: list[float | None] = []
        self.committed: list[dict[MessageQueue, int]] = []
        self.commit_error: TriomqError | None = None
        self.consumer = self
        self.first_at = None  # no option has a time
        self.missing: dict[MessageQueue | str, TriomqError] = {}
        self.unmatched: str | None = None
        self.kept: dict[MessageQueue, int] = {}  # ends of queues that brokers have, but not the route

    def retry(self, limit_s: float | None = None) -> Retry:
        self.tries.append(limit_s)
        return Retry(0.0, "test")

    def queues(self, _: Retry, *, may_be_gone: bool) -> tuple[MessageQueue, ...]:
        self.lookups += 1
        if self.lookup_error is not None:
            raise self.lookup_error
        return tuple(sorted(self.queue_bounds))

    def bounds(self, queues: Any, _: Retry, *, complete: bool = False) -> Bounds:
        self.polls += 1
        found = {
            queue: QueueBounds(*self.queue_bounds[queue]) for queue in queues if queue.broker_name not in self.errors
        }
        return Bounds(found, self.errors, set())

    def earliest_store_time(self, _: MessageQueue) -> int:
        return self.first_ms

    def is_wanted(self, queue: MessageQueue) -> bool:
        return queue.topic == "T"

    def max_offset(self, queue: MessageQueue) -> int:
        if queue not in self.kept:
            raise ConnectError("gone")
        return self.kept[queue]

    def commit_oneway(self, offsets: dict[MessageQueue, int]) -> None:
        if self.commit_error is not None:
            raise self.commit_error
        self.committed.append(dict(offsets))


class Setting:
    """A driver, its brokers and its clock."""

    def __init__(self, **options: object) -> None:
        self.brokers = FakeBrokers()
        self.now = 1000.0
        self.rests_s: list[float] = []
        self.options = options
        self.driver = self.restart()

    def restart(self, **more: object) -> MicroBatchReader:
        given = {"nameServer": "h:1", "subscribe": "T", "startingOffsets": "earliest", **self.options, **more}
        options = parse_options({name.replace("_", "."): str(value) for name, value in given.items()}, Use.STREAM_READ)
        self.driver = MicroBatchReader(options, ())
        self.driver._clock, self.driver._wall_ns = lambda: self.now, lambda: round(self.now * 1e9)
        self.driver._sleep = self.rest
        self.driver._discovery = cast("Discovery", self.brokers)
        self.driver._group = cast("PullConsumer", self.brokers)
        return self.driver

    def rest(self, duration_s: Any) -> None:
        self.rests_s.append(duration_s)
        self.now += duration_s + 1e-6  # never shorter than asked for

    def latest(self, start: dict[str, Any], most: int | None = None, after_s: float = 1.0) -> dict[str, Any]:
        """Ask as Spark does, which sends the answer through JSON."""
        self.now += after_s
        limit = ReadAllAvailable() if most is None else ReadMaxRows(most)
        found: dict[str, Any] = json.loads(json.dumps(self.driver.latestOffset(start, limit)))
        return found


def begun(limit: int | None = None, **options: object) -> tuple[Setting, dict[str, Any]]:
    """Return a setting that starts at the first messages, and the end of its first micro-batch."""
    setting = Setting(**options)
    return setting, setting.latest(setting.driver.initialOffset(), limit)


def ends(offset: dict[str, Any]) -> dict[MessageQueue, int]:
    return StreamOffset.from_json(offset).ends


def planned(setting: Setting, start: dict[str, Any], end: dict[str, Any]) -> dict[MessageQueue, tuple[int, int]]:
    return {one.queue: (one.begin, one.end) for part in setting.driver.partitions(start, end) for one in part.value}


def test_initial_offset_is_stable_and_queried_once() -> None:
    setting = Setting(startingOffsets="latest")
    start = setting.driver.initialOffset()
    assert ends(start) == {Q0: 100, Q1: 50}
    assert setting.latest(start) == start
    setting.brokers.polls = 0
    setting.brokers.queue_bounds[Q0] = (0, 500)
    assert setting.driver.initialOffset() == start
    assert setting.brokers.polls == 0


def test_no_rest_makes_messages_wait() -> None:
    """The pause ends at the next poll of the brokers, whose news are returned at once."""
    setting = Setting(startingOffsets="latest", offsetPollMs=40)
    start = setting.driver.initialOffset()
    setting.latest(start)
    polled_at = setting.now
    setting.latest(start, after_s=0.010)
    setting.brokers.queue_bounds[Q0] = (0, 101)
    assert ends(setting.latest(start, after_s=0.010)) == {Q0: 101, Q1: 50}
    assert setting.now == pytest.approx(polled_at + 0.040, abs=1e-5)
    setting.rests_s.clear()
    for _ in range(20):
        assert setting.latest(start, after_s=0.050) != start  # a trigger, or batches of another source
    assert not setting.rests_s


def test_limit_is_shared_by_all_queues() -> None:
    """Scenario 16."""
    setting = Setting(maxOffsetsPerTrigger=30)
    assert setting.driver.reportLatestOffset() is None
    start = setting.driver.initialOffset()
    assert ends(setting.latest(start, None)) == {Q0: 100, Q1: 50}
    sizes = []
    while (end := setting.latest(start, 30)) != start:
        ranges = planned(setting, start, end)
        sizes.append(sum(stop - begin for begin, stop in ranges.values()))
        assert len(ranges) == 2
        start = end
    assert sizes == [30, 30, 30, 30, 30]
    setting.brokers.queue_bounds[Q0] = (0, 101)
    setting.latest(start, 30)
    assert ends(setting.driver.reportLatestOffset() or {}) == {Q0: 101, Q1: 50}


def test_available_now_leaves_shortened_queue_to_next_run() -> None:
    setting, end = begun(failOnDataLoss="false")
    del setting.brokers.queue_bounds[Q1]
    setting.brokers.queue_bounds[Q0] = (0, 300)
    setting.restart().prepareForTriggerAvailableNow()
    first = setting.latest(end, 100)
    setting.brokers.queue_bounds.update({Q0: (0, 900), Q1: (0, 20)})
    second = setting.latest(first, after_s=60)
    assert planned(setting, first, second) == {Q0: (200, 300)}
    setting.restart().prepareForTriggerAvailableNow()
    assert planned(setting, second, setting.latest(second)) == {Q0: (300, 900), Q1: (0, 20)}


def test_new_queue_starts_at_first_message_after_discovery() -> None:
    """Scenarios 20 and 21."""
    setting = Setting(startingOffsets="latest")
    start = setting.driver.initialOffset()
    assert setting.latest(start) == start
    setting.brokers.queue_bounds[Q2] = (3, 9)
    assert setting.latest(start) == start
    end = setting.latest(start, after_s=31)
    assert planned(setting, start, end) == {Q2: (3, 9)}


def test_repeated_batch_reads_logged_ranges() -> None:
    """Scenario 38: killed in batch 0 with ``latest``, messages arrive, started again."""
    setting = Setting(startingOffsets="latest")
    start = setting.driver.initialOffset()
    setting.brokers.queue_bounds[Q0] = (0, 110)
    logged = setting.latest(start)
    setting.brokers.queue_bounds[Q0] = (0, 500)
    setting.restart()
    again = setting.driver.initialOffset()
    assert ends(again)[Q0] == 500
    assert planned(setting, again, logged) == {Q0: (100, 110)}
    assert ranges_between(StreamOffset.from_json(logged), StreamOffset.from_json(setting.latest(logged))) == {
        Q0: (110, 500)
    }


def test_retention_beyond_checkpoint_is_loss_with_its_count(caplog: pytest.LogCaptureFixture) -> None:
    """Scenario 41."""
    setting, end = begun()
    setting.brokers.queue_bounds[Q0] = (130, 200)
    with pytest.raises(DataLossError, match=r"30 messages of T@a:0 .*offset 100 .*130 to 200"):
        setting.latest(end)
    setting.restart(failOnDataLoss="false")
    following = setting.latest(end)
    assert planned(setting, end, following) == {Q0: (130, 200)}
    assert [record.getMessage().count("lost=30") for record in caplog.records] == [1]


@pytest.mark.parametrize(("stored_after_ms", "begin"), [(61_000, 0), (-5000, 100)], ids=["new", "old"])
def test_first_message_shows_recreated_topic_at_restart(
    caplog: pytest.LogCaptureFixture, stored_after_ms: int, begin: int
) -> None:
    """Scenario 43: a first message, unknown to the checkpoint, that was stored long after it."""
    setting, end = begun(failOnDataLoss="false")
    setting.brokers.queue_bounds[Q0] = (0, 300)
    setting.brokers.first_ms = round(setting.now * 1000) + stored_after_ms
    del end["first"]
    setting.restart()
    following = setting.latest(end)
    assert planned(setting, end, following)[Q0] == (begin, 300)
    assert ("queue=T@a:0 wanted=100 lost=unknown" in caplog.text) == (begin == 0)
    setting.brokers.queue_bounds[Q0] = (0, 310)
    assert planned(setting, following, setting.latest(following)) == {Q0: (300, 310)}


def test_recreated_topic_is_detected_when_its_broker_returns(caplog: pytest.LogCaptureFixture) -> None:
    """The restart was while the broker was away.  Its queues wait, and one warning names it."""
    setting = Setting(failOnDataLoss="false")
    setting.brokers.queue_bounds[AWAY] = (0, 10)
    end = setting.latest(setting.driver.initialOffset())
    setting.brokers.errors = {"b": ConnectError("refused")}
    setting.restart()
    for _ in range(20):
        assert setting.latest(end) == end
    assert sum("brokers=b" in record.getMessage() for record in caplog.records) == 1
    setting.brokers.errors = {}
    setting.brokers.queue_bounds[AWAY] = (0, 300)
    setting.brokers.first_ms = round(setting.now * 1000) + 61_000
    assert planned(setting, end, setting.latest(end))[AWAY] == (0, 300)


def test_unread_queue_off_route_becomes_loss(caplog: pytest.LogCaptureFixture) -> None:
    setting, end = begun(30, failOnDataLoss="false")
    read = ends(end)[Q1]
    del setting.brokers.queue_bounds[Q1]
    end = setting.latest(end, after_s=31)
    end = setting.latest(end, after_s=89)
    assert "lost=" not in caplog.text
    end = setting.latest(end, after_s=2)
    setting.latest(end, after_s=200)
    assert caplog.text.count(f"queue=T@a:1 wanted={read} lost={50 - read} ") == 1
    assert ends(end)[Q1] == read


def test_unread_queue_off_route_fails_query_or_resumes() -> None:
    setting, end = begun(30)
    del setting.brokers.queue_bounds[Q1]
    end = setting.latest(end, after_s=31)
    setting.brokers.queue_bounds[Q1] = (0, 50)
    following = setting.latest(end, after_s=91)
    assert planned(setting, end, following)[Q1] == (ends(end)[Q1], 50)
    setting.brokers.queue_bounds[Q0] = (0, 100)
    del setting.brokers.queue_bounds[Q1]
    setting.latest(end, after_s=31)
    with pytest.raises(DataLossError, match=r"T@a:1 are lost.* the queue is no longer in the route"):
        setting.latest(end, after_s=91)


def test_queue_gone_before_restart_is_queried_or_unknown(caplog: pytest.LogCaptureFixture) -> None:
    """Scenario 26: a run over what there is now has no time to wait."""
    setting, end = begun()
    del setting.brokers.queue_bounds[Q1]
    for kept, warnings in (({}, 1), ({Q1: 50}, 0)):
        setting.brokers.kept = kept
        setting.restart().prepareForTriggerAvailableNow()
        assert setting.latest(end) == end
        assert caplog.text.count("queue=T@a:1 offset=50 lost=unknown") == warnings
        caplog.clear()
    for kept, lost in (({Q1: 57}, "7"), ({Q1: 0}, "an unknown number of")):
        setting.brokers.kept = kept
        setting.restart().prepareForTriggerAvailableNow()
        with pytest.raises(DataLossError, match=f"{lost} messages of T@a:1 are lost"):
            setting.latest(end)


def test_checkpoint_of_other_topics_is_an_error() -> None:
    """It belongs to another query: its rows would be lost, or the sink mixed."""
    setting = Setting()
    start = setting.driver.initialOffset()
    start["q"] = {"Other": {"a": {"0": 5}}}
    with pytest.raises(
        ConfigError, match=r"offsets of other topics than the options select: Other;.*checkpointLocation"
    ):
        setting.restart().latestOffset(start, ReadAllAvailable())


@pytest.mark.parametrize("kept", [{}, {MessageQueue("Other", "a", 0): 5}], ids=["end unknown", "all was read"])
def test_topic_excluded_by_options_is_logged(caplog: pytest.LogCaptureFixture, kept: dict[MessageQueue, int]) -> None:
    """Scenario 26: none is dropped silently."""
    setting = Setting()
    setting.brokers.kept = kept
    start = setting.driver.initialOffset()
    start["q"]["Other"] = {"a": {"0": 5}}
    setting.latest(start, after_s=91)
    setting.latest(start, after_s=91)
    assert caplog.text.count("the options do not select it queue=Other@a:0 offset=5") == 1


def test_known_queues_need_no_name_server() -> None:
    setting = Setting()
    start = setting.driver.initialOffset()
    setting.brokers.lookup_error = NameServerError("away")
    assert ends(setting.latest(start, after_s=60)) == {Q0: 100, Q1: 50}
    assert setting.brokers.tries[-2:] == [0.0, None]  # a lookup that is not needed gets one attempt
    with pytest.raises(NameServerError):
        setting.restart().initialOffset()


def test_group_gets_only_durable_offsets() -> None:
    """Scenario 22."""
    setting = Setting(group_id="watched")
    start = setting.driver.initialOffset()
    end = setting.latest(start)
    assert setting.brokers.committed == []
    setting.brokers.commit_error = RequestTimeoutError("late")
    assert setting.latest(end) == end
    setting.brokers.commit_error = None
    setting.latest(end)
    setting.driver.commit(end)
    assert setting.brokers.committed == [{Q0: 100, Q1: 50}]
    setting.brokers.queue_bounds[Q1] = (0, 60)
    following = setting.latest(end)
    assert len(setting.brokers.committed) == 1
    setting.driver.latestOffset(following, ReadAllAvailable())
    assert setting.brokers.committed[1:] == [{Q1: 60}]
