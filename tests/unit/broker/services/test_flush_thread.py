"""The thread that waits for the disk: results, errors and cancellation reach the waiting task."""

import threading

import pytest
import trio

from triomq.broker.services.flush import FlushThread
from triomq.protocol.errors import StoreError


async def test_actions_run_in_one_other_thread() -> None:
    seen: list[int] = []
    with FlushThread() as thread:
        for _ in range(3):
            await thread.run(lambda: seen.append(threading.get_ident()))
    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert threading.get_ident() not in seen


async def test_other_tasks_run_during_an_action() -> None:
    go_on = threading.Event()
    with FlushThread() as thread:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(thread.run, lambda: None if go_on.wait(10) else pytest.fail("no task ran"))
            await trio.testing.wait_all_tasks_blocked()
            go_on.set()


async def test_error_is_raised_once() -> None:
    def fail() -> None:
        raise StoreError("the disk is gone")

    with FlushThread() as thread:
        with pytest.raises(StoreError, match="the disk is gone"):
            await thread.run(fail)
        await thread.run(lambda: None)


async def test_cancelled_run_waits_for_its_action() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), []

    def slow() -> None:
        begun.set()
        assert go_on.wait(10)
        ended.append(True)

    with FlushThread() as thread:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(thread.run, slow)
            await trio.to_thread.run_sync(begun.wait, 10)
            nursery.cancel_scope.cancel()
            go_on.set()
        assert ended == [True]


async def test_thread_ends_with_the_block() -> None:
    with FlushThread() as thread:
        await thread.run(lambda: None)
    assert "triomq-flush" not in {other.name for other in threading.enumerate()}
