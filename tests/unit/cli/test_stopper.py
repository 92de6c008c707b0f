import math

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from triomq.cli.stopper import Pacer, Stopper


async def test_setting_the_stopper_ends_waiting_but_not_other_work(autojump_clock: MockClock) -> None:
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


async def test_a_pacer_lets_no_more_than_its_rate_pass(autojump_clock: MockClock) -> None:
    pacer = Pacer(10, Stopper())
    began = trio.current_time()
    for _ in range(21):
        await pacer.wait(1)
    assert trio.current_time() - began == pytest.approx(2)


async def test_a_batch_counts_as_its_messages(autojump_clock: MockClock) -> None:
    pacer = Pacer(10, Stopper())
    began = trio.current_time()
    await pacer.wait(20)
    await pacer.wait(20)
    assert trio.current_time() - began == pytest.approx(2)


async def test_time_without_input_is_not_made_up_for(autojump_clock: MockClock) -> None:
    pacer = Pacer(10, Stopper())
    await pacer.wait(1)
    await trio.sleep(60)
    began = trio.current_time()
    for _ in range(11):
        await pacer.wait(1)
    assert trio.current_time() - began >= 0.9


async def test_without_a_rate_nothing_waits(autojump_clock: MockClock) -> None:
    pacer = Pacer(None, Stopper())
    began = trio.current_time()
    for _ in range(1000):
        await pacer.wait(1)
    assert trio.current_time() == began


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
