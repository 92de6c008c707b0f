"""What a display remembers of a cluster: rates of the last hour, findings, backlog, contents of topics.

Each broker is asked for its counters every 5 s, every 2 s while a display is looked at.  The rest is asked only for a
display that shows it, and at most once in some seconds, whatever the number of browsers.  Memory is bounded: 360 points
for each broker, and the last counters of topics that were looked at.
"""

import logging
import math
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

import trio

from triomq.client.admin.admin import Admin
from triomq.client.admin.broker_answers import BrokerAnswer
from triomq.client.admin.diagnosis import Diagnosis
from triomq.client.admin.traffic import Counters, TopicContents, counters_of
from triomq.protocol.errors import REMOTE_ERRORS, RequestTimeoutError
from triomq.protocol.names import topic_kind

LOGGER: Final = logging.getLogger("triomq.client.admin.sampler")

_WATCHED_S: Final = 2.0
_IDLE_S: Final = 5.0
_LOOKS_S: Final = 30.0  # a page keeps the answers fresh for this time
_POINT_S: Final = 10
_POINTS: Final = 360
_DIAGNOSIS_S: Final = 30.0
#: Findings that are older are not shown while the doctor examines again, if it is quick.
_OLD_DIAGNOSIS_S: Final = 300.0
_FRESH_S: Final = 2.0
#: A page does not wait longer than that for one answer: it shows the one before, and the next page has the new one.
WAIT_S: Final = 0.8
_GIVE_UP_S: Final = 10.0
_MAX_BROKERS: Final = 256
_MAX_TOPICS: Final = 6000
_MAX_ANSWERS: Final = 32
_NO_COUNTERS: Final = counters_of({})

_T = TypeVar("_T")


class Point(NamedTuple):
    """Messages per second over 10 s; ``None``: not known.

    Attributes:
        at: seconds since 1970, a multiple of 10.
    """

    at: int
    put: float | None
    got: float | None


class Meter:
    """The rates of one broker, from its counters.

    Attributes:
        points: of the last hour, oldest first.
        put_per_s, got_per_s: between the last two counters.
    """

    def __init__(self) -> None:
        self.points: deque[Point] = deque(maxlen=_POINTS)
        self.put_per_s: float | None = None
        self.got_per_s: float | None = None
        self._last: tuple[float, int, int] | None = None
        self._begin: tuple[float, int, int] | None = None

    def add(self, now_s: float, counters: Counters) -> None:
        """Take the counters of one moment; none, or lower ones (the broker was restarted), make a gap."""
        before, self._last = self._last, None
        if counters.put is None or counters.got is None:
            self.put_per_s = self.got_per_s = self._begin = None
            return
        last = self._last = now_s, counters.put, counters.got
        rates = _rates(before, last)
        if rates is None:
            self.put_per_s, self.got_per_s, self._begin = counters.put_per_s, counters.got_per_s, last
            return
        self.put_per_s, self.got_per_s = rates
        begin = self._begin or last
        if int(now_s) // _POINT_S > int(begin[0]) // _POINT_S and (over := _rates(begin, last)) is not None:
            self.points.append(Point(int(now_s) // _POINT_S * _POINT_S, *over))
            begin = last
        self._begin = begin


def _rates(before: tuple[float, int, int] | None, now: tuple[float, int, int]) -> tuple[float, float] | None:
    if before is None or now[0] <= before[0] or now[1] < before[1] or now[2] < before[2]:
        return None
    seconds = now[0] - before[0]
    return (now[1] - before[1]) / seconds, (now[2] - before[2]) / seconds


def sum_points(meters: Iterable[Meter], now_s: float) -> list[Point]:
    """Return the rates of several brokers together over the last hour, a point for each 10 s, gaps included."""
    put: dict[int, float] = {}
    got: dict[int, float] = {}
    for meter in meters:
        for point in meter.points:
            if point.put is not None and point.got is not None:
                put[point.at] = put.get(point.at, 0.0) + point.put
                got[point.at] = got.get(point.at, 0.0) + point.got
    end = int(now_s) // _POINT_S * _POINT_S
    begin = max(min(put, default=end), end - _POINT_S * (_POINTS - 1))
    return [Point(at, put.get(at), got.get(at)) for at in range(begin, end + 1, _POINT_S)]


@dataclass(slots=True)
class BrokerSample:
    """What is known of one broker.

    Attributes:
        answer: its last answer, or the error.
        counters: in that answer.
        meter: its rates.
        durability: ``async`` or ``sync``; ``None``: not known.
    """

    answer: BrokerAnswer
    counters: Counters = _NO_COUNTERS
    meter: Meter = field(default_factory=Meter)
    durability: str | None = None


class TopicSample(NamedTuple):
    """A topic on a page that was asked for; ``put_per_s``: since it was asked before, ``None``: it was not."""

    contents: TopicContents
    put_per_s: float | None
    at_s: float


class _Answer(NamedTuple):
    at_s: float
    value: Any
    error: Exception | None


class Sampler:
    """Asks a cluster regularly, and remembers the answers.

    Attributes:
        brokers: by name and id.
        error: why no name server could be asked; ``None``: one answered.
        diagnosis: what the doctor found; ``None``: not asked yet.
        diagnosed_ms: when, on this machine's clock.
        diagnosis_error: why it could not examine the cluster.
        looked_at: when a page was last asked for, on trio's clock.
        sampled: set once the brokers were asked for the first time.
    """

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self.brokers: dict[tuple[str, int], BrokerSample] = {}
        self.error: str | None = None
        self.diagnosis: Diagnosis | None = None
        self.diagnosed_ms = 0
        self.diagnosis_error: str | None = None
        self._nursery: trio.Nursery
        self.looked_at = trio.current_time() - _LOOKS_S
        self._woken = trio.Event()
        self._asked: dict[object, trio.Event] = {}
        self._examined_at = -math.inf
        self._backlog: Mapping[str, Mapping[str, int]] = {}
        self._topics: OrderedDict[str, TopicSample] = OrderedDict()
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        self.sampled = trio.Event()

    async def keep_asking(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ask the brokers until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            while True:
                try:
                    await self._ask()
                except Exception:
                    LOGGER.exception("answer not understood")
                if not self.sampled.is_set():
                    self.sampled.set()
                    self._begin("doctor", self._examine)  # the first visitor need not wait for it
                self._woken = trio.Event()
                looks = trio.current_time() - self.looked_at < _LOOKS_S
                with trio.move_on_after(_WATCHED_S if looks else _IDLE_S):
                    await self._woken.wait()

    def look(self) -> None:
        """Note that a page was asked for."""
        now = trio.current_time()
        if now - self.looked_at > _IDLE_S:
            self._woken.set()
        self.looked_at = now

    async def _ask(self) -> None:
        try:
            answers = await self._admin.brokers()
        except REMOTE_ERRORS as exc:
            self.error = str(exc)
            for sample in self.brokers.values():
                sample.meter.add(time.time(), _NO_COUNTERS)
            return
        self.error, now_s = None, time.time()
        known = {(answer.name, answer.broker_id): answer for answer in answers[:_MAX_BROKERS]}
        for key in self.brokers.keys() - known.keys():
            del self.brokers[key]
        for key, answer in known.items():
            sample = self.brokers.setdefault(key, BrokerSample(answer))
            if answer.runtime.get("bootTimestamp") != sample.answer.runtime.get("bootTimestamp"):
                sample.durability = None  # it may have been started with other settings
            sample.answer, sample.counters = answer, counters_of(answer.runtime)
            sample.meter.add(now_s, sample.counters)
            if sample.durability is None and answer.reached_at is not None and answer.runtime:
                sample.durability = await self._durability(answer.reached_at)

    async def _durability(self, address: str) -> str | None:
        try:
            settings = await self._admin.broker_settings(address)
        except REMOTE_ERRORS:
            return None
        flush = settings.get("flushDiskType", "")
        return {"ASYNC_FLUSH": "async", "SYNC_FLUSH": "sync"}.get(flush, flush)

    @property
    def silent(self) -> list[BrokerAnswer]:
        """The brokers that do not answer."""
        return [sample.answer for sample in self.brokers.values() if sample.answer.reached_at is None]

    def rates(self) -> list[Point]:
        """Return the rates of all brokers together over the last hour."""
        return sum_points((sample.meter for sample in self.brokers.values()), time.time())

    # --- asked for a page ---------------------------------------------------------------------------------------

    def _begin(self, key: object, ask: Callable[[], Awaitable[None]]) -> trio.Event:
        """Ask once for all pages, in the background; the event is set when that has ended."""
        if key not in self._asked:
            self._asked[key] = trio.Event()
            self._nursery.start_soon(self._ask_once, key, ask)
        return self._asked[key]

    async def _share(self, key: object, ask: Callable[[], Awaitable[None]]) -> None:
        """Wait a moment for an answer that is asked once for all pages; it is kept even if it comes too late."""
        done = self._begin(key, ask)
        with trio.move_on_after(WAIT_S):
            await done.wait()

    async def _ask_once(self, key: object, ask: Callable[[], Awaitable[None]]) -> None:
        try:
            with trio.move_on_after(_GIVE_UP_S):
                await ask()
        except REMOTE_ERRORS as exc:
            LOGGER.debug("not sampled key=%s error=%s", key, exc)  # brokers that do not answer are shown
        except Exception:
            LOGGER.exception("answer not understood")
        finally:
            self._asked.pop(key).set()

    async def examined(self) -> Diagnosis | None:
        """Return the findings of the doctor, at most 30 s old while pages are asked for; at first ``None``.

        Findings of the last minutes are returned while it examines again: with many groups that takes long.
        """
        age_s = trio.current_time() - self._examined_at
        if age_s >= _DIAGNOSIS_S:
            if age_s >= _OLD_DIAGNOSIS_S or self.diagnosis is None:
                await self._share("doctor", self._examine)
            else:
                self._begin("doctor", self._examine)
        return self.diagnosis

    async def _examine(self) -> None:
        try:
            self.diagnosis, self.diagnosis_error = await self._admin.diagnose(), None
            self.diagnosed_ms = time.time_ns() // 1_000_000
        except REMOTE_ERRORS as exc:
            self.diagnosis, self.diagnosis_error = None, str(exc)
        finally:
            self._examined_at = trio.current_time()

    async def backlog(self) -> Mapping[str, Mapping[str, int]]:
        """Return the lag of groups by topic and group, at most 2 s old, or the last one known."""
        with suppress(*REMOTE_ERRORS):
            self._backlog = await self.remembered("backlog", self._admin.backlog)
        return self._backlog

    async def topic_kinds(self) -> Mapping[str, str]:
        """Return all topics, sorted, at most 2 s old, with their kinds: ``normal``, ``retry``, ``dlq``, ``system``.

        Raises:
            ClientError: no name server answers.
        """
        return await self.remembered("kinds", self._read_kinds)

    async def _read_kinds(self) -> dict[str, str]:
        names, cluster = await self._admin.topics(), await self._admin.cluster()
        own = {*cluster.cluster_addr_table, *cluster.broker_addr_table}
        return {name: topic_kind(name, own) for name in names}

    async def remembered(self, key: str, ask: Callable[[], Awaitable[_T]]) -> _T:
        """Return an answer that is at most 2 s old, or the one before while it is asked again.

        ``key`` is the question; ``ask`` never returns ``None``.  What it raises is remembered, too.
        """
        known, ask_once = self._answers.get(key), partial(self._remember, key, ask)
        if known is None or trio.current_time() - known.at_s >= _FRESH_S:
            await self._share(key, ask_once)
            while (newer := self._answers.get(key, known)) is None:
                await self._share(key, ask_once)
            known = newer
        if known.error is not None:
            raise known.error
        return cast("_T", known.value)

    async def _remember(self, key: str, ask: Callable[[], Awaitable[Any]]) -> None:
        value: Any = None
        error: Exception | None = RequestTimeoutError(f"no answer within {_GIVE_UP_S:g} s")
        try:
            value, error = await ask(), None
        except Exception as exc:  # noqa: BLE001  # raised in the task of the page
            error = exc
        finally:  # also after the limit: otherwise pages would wait forever
            self._answers[key] = _Answer(trio.current_time(), value, error)
            self._answers.move_to_end(key)
            if len(self._answers) > _MAX_ANSWERS:
                self._answers.popitem(last=False)

    def forget(self) -> None:
        """Forget the remembered answers, because something was changed."""
        self._answers.clear()

    async def topics(self, names: Collection[str]) -> dict[str, TopicSample]:
        """Return contents and rate of topics, at most 2 s old, or the last ones known; without those not known yet."""
        now = trio.current_time()
        stale = tuple(name for name in names if name not in self._topics or now - self._topics[name].at_s >= _FRESH_S)
        if stale:
            await self._share(stale, partial(self._read_topics, stale))
        return {name: self._topics[name] for name in names if name in self._topics}

    async def _read_topics(self, names: Collection[str]) -> None:
        self._note_topics(await self._admin.topic_contents(names))

    def _note_topics(self, found: Mapping[str, TopicContents]) -> None:
        now = trio.current_time()
        for name, contents in found.items():
            before = self._topics.pop(name, None)
            per_s = None
            if before is not None and now > before.at_s and contents.ever >= before.contents.ever:
                per_s = (contents.ever - before.contents.ever) / (now - before.at_s)
            self._topics[name] = TopicSample(contents, per_s, now)
        while len(self._topics) > _MAX_TOPICS:
            self._topics.popitem(last=False)
