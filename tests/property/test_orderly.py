"""Orderly consumption against a model: the messages of a handler and the commits, for any sequence of results."""

import hypothesis.strategies as st
import trio
from hypothesis import given, settings
from trio.testing import MockClock

from tests.unit.client.consumer.fake_cluster import offsets_of
from tests.unit.client.consumer.service_bench import SUSPEND, OrderlyBench
from triomq.client.consumer.config import ConsumeStatus, OrderlyContext
from triomq.protocol.record.message import MessageExt

STATUSES = (ConsumeStatus.SUCCESS, ConsumeStatus.COMMIT, ConsumeStatus.ROLLBACK, SUSPEND)
Result = tuple[ConsumeStatus, bool]  # a status, and whether auto_commit is on
results = st.lists(st.tuples(st.sampled_from(STATUSES), st.booleans()), max_size=25)
WAIT_S = 100.0  # above the sum of all suspensions


def model(script: list[Result], count: int, batch: int, limit: int) -> tuple[list[list[int]], list[int], int]:
    """Return the handler's calls, the dead letters and the offset to commit."""
    cache, taken = list(range(count)), list[int]()
    failures = dict.fromkeys(cache, 0)
    calls, dead = list[list[int]](), list[int]()
    following = iter(script)
    while cache:
        now, cache = cache[:batch], cache[batch:]
        taken += now
        calls.append(now)
        status, auto_commit = next(following, (ConsumeStatus.COMMIT, False))
        if status is SUSPEND:
            again = [offset for offset in now if failures[offset] < limit]
            for offset in now:
                failures[offset] += 1
                if offset not in again:
                    dead.append(offset)
                    taken.remove(offset)
            if again:
                taken = [offset for offset in taken if offset not in again]
                cache = sorted(cache + again)
            elif auto_commit:
                taken = []
        elif auto_commit or status is ConsumeStatus.COMMIT:
            taken = []
        elif status is ConsumeStatus.ROLLBACK:
            cache, taken = sorted(cache + taken), []
    return calls, dead, min(taken, default=count)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(script=results, count=st.integers(1, 8), batch=st.integers(1, 3), limit=st.integers(0, 2))
def test_orderly_consumption_behaves_like_its_model(script: list[Result], count: int, batch: int, limit: int) -> None:
    calls: list[list[int]] = []
    following = iter(script)

    async def on_messages(messages: list[MessageExt], context: OrderlyContext) -> ConsumeStatus:
        calls.append(offsets_of(messages))
        status, context.auto_commit = next(following, (ConsumeStatus.COMMIT, False))
        return status

    async def run() -> tuple[list[int], int | None]:
        bench = OrderlyBench(on_messages=on_messages, batch_max_size=batch, orderly_max_reconsume_times=limit)
        async with bench.running():
            bench.pull(*range(count))
            await trio.sleep(WAIT_S)
        return bench.sender.dead, bench.queue.consumed_offset()

    dead, offset = trio.run(run, clock=MockClock(autojump_threshold=0))
    assert (calls, dead, offset) == model(script, count, batch, limit)
