import pytest
import trio
from trio.testing import MockClock

from tests.unit.client.fake_broker import FakeBroker
from triomq.client.cluster.instance import ClientInstance
from triomq.client.nursery import in_parallel, open_service_nursery


async def test_a_lone_error_of_the_block_leaves_bare(fake_broker: FakeBroker) -> None:
    async def block() -> None:
        async with ClientInstance(fake_broker.address) as instance:
            await instance.routes.topic_route("Topic")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        await block()
    assert caught.value.__context__ is None


async def test_task_error_leaves_bare_and_ends_the_block(fake_broker: FakeBroker) -> None:
    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise KeyError("theirs")

    async def block() -> None:
        async with ClientInstance(fake_broker.address) as instance:
            instance.requests.connections._nursery.start_soon(fail)
            await trio.sleep_forever()

    with pytest.raises(KeyError, match="theirs"):
        await block()


async def test_two_errors_leave_as_a_group(fake_broker: FakeBroker) -> None:
    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise KeyError("theirs")

    async def block() -> None:
        async with ClientInstance(fake_broker.address) as instance:
            instance.requests.connections._nursery.start_soon(fail)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("mine")

    with pytest.raises(ExceptionGroup) as caught:
        await block()
    assert {type(error) for error in caught.value.exceptions} == {KeyError, ValueError}


async def test_cancelling_the_block_just_ends_it(fake_broker: FakeBroker) -> None:
    with trio.move_on_after(0) as scope:
        async with ClientInstance(fake_broker.address):
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_an_error_deep_inside_groups_leaves_bare() -> None:
    async def block() -> None:
        async with open_service_nursery() as outer:
            outer.start_soon(trio.sleep_forever)
            async with trio.open_nursery() as inner:
                inner.start_soon(trio.sleep_forever)
                raise KeyError("deep")

    with pytest.raises(KeyError, match="deep"):
        await block()


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
