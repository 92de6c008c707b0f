"""A clock that is set at any time: searches by time and by key find all that was stored then, also after restarts."""

import shutil
import tempfile
from pathlib import Path
from typing import Final

from hypothesis import example, given, settings
from hypothesis import strategies as st

from triomq.protocol.host import encode_host
from triomq.storage.append import HELD_STEP_MS, entry
from triomq.storage.config import StoreConfig
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.cold_read import finish
from triomq.storage.tools.stopped_store import StoppedStore
from triomq.storage.tools.store_check import check

HOST: Final = encode_host("127.0.0.1", 10911)
DAY_MS: Final = 86_400_000
STEPS: Final = st.sampled_from([-DAY_MS, -HELD_STEP_MS - 1, -HELD_STEP_MS, 0, 1, 5000, DAY_MS])
#: How far the clock is set, how many messages come then, and what happens to the broker.
MOVES: Final = st.lists(
    st.tuples(STEPS, st.integers(0, 7), st.sampled_from(["", "", "restart", "kill"])), min_size=1, max_size=12
)


class Life:
    """A store with a clock; ``times`` are the store times of the messages of its two queues."""

    def __init__(self, parent: Path) -> None:
        self.parent = parent
        self.root = parent / "0"
        self.now_ms = 1_800_000_000_000
        self.times: tuple[list[int], list[int]] = ([], [])
        self.open()

    def open(self) -> None:
        config = StoreConfig(
            root=self.root,
            commit_log_file_size_bytes=4096,
            consume_queue_file_size_bytes=100,
            index_slots=3,
            index_units=9,
        )
        self.store = MessageStore(config, clock_ms=lambda: self.now_ms)
        self.store.open()

    def put(self, count: int) -> None:
        for number in range(count):
            queue_id = number % 3 // 2
            message = entry(self.store.queue("T", queue_id), b"", b"KEYS\x01k", born_host=HOST, store_host=HOST)
            self.store.append([message])
            self.times[queue_id].append(self.store.commit_log.store_timestamp)
            self.now_ms += 700

    def restart(self) -> None:
        self.store.close()
        self.open()

    def kill(self) -> None:
        copy = self.root.with_name(str(int(self.root.name) + 1))
        shutil.copytree(self.root, copy)
        self.store.close()
        self.root = copy
        self.open()

    def check(self) -> None:
        for queue_id, times in enumerate(self.times):
            assert self.store.reader.max_offset_in_queue("T", queue_id) == len(times)
            for wanted in {time + away for time in times for away in (-300, 0, 300)}:
                found = finish(self.store.reader.offset_by_time("T", queue_id, wanted))
                younger = next((number for number, time in enumerate(times) if time >= wanted), len(times))
                assert max(younger - 1, 0) <= found, "messages that are older"
                assert all(time <= wanted for time in times[:found]), "a younger message was passed over"
        stored = sorted(time for times in self.times for time in times)
        for begin in stored:
            matches = finish(self.store.index.search("T", "k", 64, begin - 1000, begin + 5000))
            seen = sorted(self.store.commit_log.store_time(offset) for offset in matches.offsets)
            inside = range(begin, begin + 5001)
            assert [time for time in seen if time in inside] == [time for time in stored if time in inside]


@settings(max_examples=60, deadline=None)
@given(moves=MOVES)
@example([(0, 5, ""), (DAY_MS, 5, ""), (-DAY_MS, 5, "restart"), (0, 5, "kill")])
@example([(0, 5, ""), (-DAY_MS, 5, "kill"), (DAY_MS, 5, "")])
def test_searches_find_messages_stored_with_wrong_clock(moves: list[tuple[int, int, str]]) -> None:
    with tempfile.TemporaryDirectory(prefix="triomq-clock-") as parent:
        life = Life(Path(parent))
        try:
            life.put(1)
            for step_ms, count, event in moves:
                life.now_ms += step_ms
                life.put(count)
                if event:
                    getattr(life, event)()
            life.check()
            life.store.close()
            with StoppedStore(life.root) as stopped:
                assert check(stopped).problems == []
        finally:
            life.store.close()
