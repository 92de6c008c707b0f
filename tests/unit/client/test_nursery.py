import pytest
import trio
from trio.testing import MockClock

from triomq.client.nursery import in_parallel, open_service_nursery


async def fail(error: Exception) -> None:
    await trio.lowlevel.checkpoint()
    raise error


@pytest.mark.parametrize("place", ["block", "task", "inner group"])
async def test_lone_error_leaves_bare_and_ends_the_block(place: str) -> None:
    async def block() -> None:
        async with open_service_nursery() as outer:
            outer.start_soon(trio.sleep_forever)
            if place == "task":
                outer.start_soon(fail, KeyError(place))
            if place == "block":
                await fail(KeyError(place))
            async with trio.open_nursery() as inner:
                inner.start_soon(trio.sleep_forever)
                if place == "inner group":
                    await fail(KeyError(place))

    with pytest.raises(KeyError, match=place) as caught:
        await block()
    assert caught.value.__context__ is None


async def test_two_errors_leave_as_a_group() -> None:
    async def block() -> None:
        async with open_service_nursery() as nursery:
            nursery.start_soon(fail, KeyError("theirs"))
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("mine")

    with pytest.raises(ExceptionGroup) as caught:
        await block()
    assert {type(error) for error in caught.value.exceptions} == {KeyError, ValueError}


async def test_parallel_calls_keep_order_and_bound(autojump_clock: MockClock) -> None:
    running = most = 0

    async def call(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(1 + 1 / (number + 1))  # later ones end earlier
        running -= 1
        return -number

    assert await in_parallel(call, range(64)) == [-number for number in range(64)]
    assert most == 32
    assert trio.current_time() < 5


async def test_first_error_of_parallel_calls_ends_others(autojump_clock: MockClock) -> None:
    done = []

    async def call(number: int) -> None:
        await trio.sleep(number)
        done.append(number)
        raise KeyError(number)

    with pytest.raises(KeyError, match="1"):
        await in_parallel(call, [3, 1, 2])
    assert done == [1]
