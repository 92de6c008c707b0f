"""A signal can be awaited again and again."""

import trio
from trio.testing import wait_all_tasks_blocked

from triomq.broker.signals import Signal


async def test_signal_wakes_until_cleared(nursery: trio.Nursery) -> None:
    signal = Signal()
    woken: list[int] = []

    async def wait(number: int) -> None:
        await signal.wait()
        woken.append(number)

    signal.set()
    await wait(1)
    signal.clear()
    assert not signal.is_set()
    nursery.start_soon(wait, 2)
    await wait_all_tasks_blocked()
    assert woken == [1]
    signal.set()
    await wait_all_tasks_blocked()
    assert woken == [1, 2]
