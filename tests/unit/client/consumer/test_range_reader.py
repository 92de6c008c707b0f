from collections.abc import Awaitable

import pytest
import trio
from trio.testing import MockClock

from tests.unit.client.consumer.benches import QUEUE
from tests.unit.client.consumer.fake_cluster import FakeCluster
from triomq.client.consumer.pull import PullStatus, RawPull
from triomq.client.consumer.range_reader import RangeReader, ReadLimits
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import (
    ClientClosedError,
    ConfigError,
    ConnectError,
    SubscriptionParseError,
    TopicNotExistError,
)
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.record import decode_records
from triomq.protocol.wire.command import RemotingCommand

_EVERYTHING = 2**40


def offsets(answers: list[RawPull]) -> list[int]:
    return [message.queue_offset for answer in answers for message in decode_records(answer.body)]


async def read_all(reader: RangeReader) -> list[int]:
    found = []
    while answers := await reader.read(_EVERYTHING):
        found += offsets(answers)
    return found


async def read_into(found: list[int], reader: RangeReader) -> None:
    """As :func:`read_all`, but keeps answers before an error."""
    while answers := await reader.read(1):
        found += offsets(answers)


def fill(cluster: FakeCluster, queue: MessageQueue, count: int) -> None:
    cluster.send(queue, *(b"%d" % number for number in range(count)))


def at_most(cluster: FakeCluster, count: int) -> None:
    """Let the broker give few messages for a pull, as from disk."""

    def limited(command: RemotingCommand) -> None:
        command.ext_fields["maxMsgNums"] = str(min(count, int(command.ext_fields["maxMsgNums"])))

    cluster.handlers[RequestCode.PULL_MESSAGE] = limited


async def test_range_is_read_in_order_and_ends(cluster: FakeCluster) -> None:
    fill(cluster, QUEUE, 500)
    async with RangeReader(QUEUE, 7, 333, group="G", instance=cluster.instance) as reader:
        assert await read_all(reader) == list(range(7, 333))
        assert await reader.read(1) == []
    pulls = cluster.of(RequestCode.PULL_MESSAGE)
    assert len(pulls) == 11
    assert {(pull.ext_fields["sysFlag"], pull.ext_fields["suspendTimeoutMillis"]) for pull in pulls} == {("4", "0")}
    assert not cluster.committed


@pytest.mark.parametrize("given", [1, 5, 8, 31])
async def test_gaps_of_short_answers_are_filled(cluster: FakeCluster, given: int) -> None:
    fill(cluster, QUEUE, 200)
    at_most(cluster, given)
    async with RangeReader(QUEUE, 0, 200, group="G", instance=cluster.instance) as reader:
        found = await read_all(reader)
    assert sorted(set(found)) == list(range(200))
    assert len(found) < 250
    assert len(cluster.of(RequestCode.PULL_MESSAGE)) < 2 * 200 / given + 8


async def test_reader_backs_off_large_pulls(cluster: FakeCluster) -> None:
    """An Apache broker gives 32; each try for more leaves gaps, which cost a pull each."""
    fill(cluster, QUEUE, 20_000)
    asked: list[int] = []

    def limited(command: RemotingCommand) -> None:
        asked.append(int(command.ext_fields["maxMsgNums"]))
        command.ext_fields["maxMsgNums"] = str(min(32, asked[-1]))

    cluster.handlers[RequestCode.PULL_MESSAGE] = limited
    async with RangeReader(
        QUEUE, 0, 20_000, group="G", instance=cluster.instance, limits=ReadLimits(max_messages=512)
    ) as reader:
        found = await read_all(reader)
    assert sorted(set(found)) == list(range(20_000))
    needed = 20_000 // 32
    assert needed <= len(asked) < needed * 1.1
    first, second = asked[: len(asked) // 4], asked[len(asked) // 2 :]
    assert sum(number > 32 for number in first) > 0
    assert sum(number > 32 for number in second) < len(second) * 0.05


async def test_only_so_many_pulls_are_under_way(cluster: FakeCluster, autojump_clock: MockClock) -> None:
    fill(cluster, QUEUE, 1000)
    under_way = most = 0

    async def slowly(command: RemotingCommand) -> RemotingCommand:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await trio.sleep(1)
        under_way -= 1
        return await cluster._pull(command, QUEUE)

    cluster.handlers[RequestCode.PULL_MESSAGE] = slowly
    async with RangeReader(
        QUEUE, 0, 1000, group="G", instance=cluster.instance, limits=ReadLimits(pulls_in_flight=4)
    ) as reader:
        assert await read_all(reader) == list(range(1000))
    assert most == 4
    async with RangeReader(
        QUEUE, 0, 200, group="G", instance=cluster.instance, limits=ReadLimits(in_flight_bytes=1)
    ) as reader:
        most = 0
        assert await read_all(reader) == list(range(200))
    assert most == 1


async def test_correction_is_last_and_seek_continues(cluster: FakeCluster) -> None:
    cluster.min_offsets[QUEUE] = 50
    fill(cluster, QUEUE, 100)
    async with RangeReader(QUEUE, 0, 150, group="G", instance=cluster.instance) as reader:
        (answer,) = await reader.read(1)
        assert (answer.status, answer.next_begin_offset, reader.position) == (PullStatus.OFFSET_ILLEGAL, 50, 0)
        reader.seek(50)
        assert await read_all(reader) == list(range(50, 150))


async def test_read_continues_after_an_error(cluster: FakeCluster) -> None:
    fill(cluster, QUEUE, 300)
    async with RangeReader(QUEUE, 0, 300, group="G", instance=cluster.instance) as reader:
        found = offsets(await reader.read(1))
        cluster.down = True
        with pytest.raises(ConnectError):
            await read_into(found, reader)
        cluster.down = False
        found += await read_all(reader)
    assert found == list(range(300))


async def test_what_came_before_an_error_is_not_lost(cluster: FakeCluster) -> None:
    fill(cluster, QUEUE, 96)

    def refuse_the_second(command: RemotingCommand) -> RemotingCommand | None:
        if command.ext_fields["queueOffset"] != "32":
            return None
        return command.reply(ResponseCode.TOPIC_NOT_EXIST, remark="gone")

    cluster.handlers[RequestCode.PULL_MESSAGE] = refuse_the_second
    async with RangeReader(QUEUE, 0, 96, group="G", instance=cluster.instance) as reader:
        assert offsets(await reader.read(_EVERYTHING)) == list(range(32))
        with pytest.raises(TopicNotExistError):
            await reader.read(_EVERYTHING)


async def test_a_cancelled_read_leaves_no_pull_behind(cluster: FakeCluster, autojump_clock: MockClock) -> None:
    fill(cluster, QUEUE, 100)
    never = trio.Event()

    def wait(_: RemotingCommand) -> Awaitable[RemotingCommand]:
        return _for_ever(never)

    cluster.handlers[RequestCode.PULL_MESSAGE] = wait
    async with RangeReader(QUEUE, 0, 100, group="G", instance=cluster.instance) as reader:
        with trio.move_on_after(1):
            await reader.read(1)
        assert not reader._window
        del cluster.handlers[RequestCode.PULL_MESSAGE]
        assert await read_all(reader) == list(range(100))


async def test_a_cancelled_read_loses_no_answer(cluster: FakeCluster, autojump_clock: MockClock) -> None:
    """Its answers so far were not returned to any caller."""
    fill(cluster, QUEUE, 100)

    def stuck(command: RemotingCommand) -> Awaitable[RemotingCommand] | None:
        return _for_ever(trio.Event()) if int(command.ext_fields["queueOffset"]) >= 64 else None

    async with RangeReader(QUEUE, 0, 100, group="G", instance=cluster.instance) as reader:
        cluster.handlers[RequestCode.PULL_MESSAGE] = stuck
        with trio.move_on_after(1):
            await reader.read(_EVERYTHING)
        del cluster.handlers[RequestCode.PULL_MESSAGE]
        assert await read_all(reader) == list(range(100))


async def _for_ever(never: trio.Event) -> RemotingCommand:
    await never.wait()
    raise AssertionError


async def test_waiter_ends_when_another_task_leaves(cluster: FakeCluster, autojump_clock: MockClock) -> None:
    fill(cluster, QUEUE, 100)
    cluster.handlers[RequestCode.PULL_MESSAGE] = lambda _: _for_ever(trio.Event())
    told: list[ClientClosedError] = []

    async def wait(reader: RangeReader) -> None:
        with pytest.raises(ClientClosedError) as caught:
            await reader.read(1)
        told.append(caught.value)

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            async with RangeReader(QUEUE, 0, 100, group="G", instance=cluster.instance) as reader:
                nursery.start_soon(wait, reader)
                await trio.sleep(1)
    assert len(told) == 1


async def test_waiting_poll_follows_seek_of_another_task(cluster: FakeCluster, autojump_clock: MockClock) -> None:
    fill(cluster, QUEUE, 100)
    cluster.handlers[RequestCode.PULL_MESSAGE] = lambda _: _for_ever(trio.Event())
    found: list[int] = []
    with trio.fail_after(10):
        async with (
            RangeReader(QUEUE, 0, 100, group="G", instance=cluster.instance) as reader,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(read_into, found, reader)
            await trio.sleep(1)
            del cluster.handlers[RequestCode.PULL_MESSAGE]
            reader.seek(90)
    assert found == list(range(90, 100))


async def test_a_reader_that_is_not_open_says_so(cluster: FakeCluster) -> None:
    reader = RangeReader(QUEUE, 0, 10, group="G", instance=cluster.instance)
    with pytest.raises(ClientClosedError):
        await reader.read(1)


async def test_impossible_settings_are_refused(cluster: FakeCluster) -> None:
    with pytest.raises(ConfigError):
        RangeReader(QUEUE, -1, 10, group="G", instance=cluster.instance)
    with pytest.raises(ConfigError):
        RangeReader(QUEUE, 0, 10, group="G", instance=cluster.instance, limits=ReadLimits(pulls_in_flight=0))
    with pytest.raises(ConfigError):
        RangeReader(QUEUE, 0, 10, group="G", instance=cluster.instance, limits=ReadLimits(max_bytes=0))
    with pytest.raises(SubscriptionParseError):
        RangeReader(QUEUE, 0, 10, group="G", instance=cluster.instance, expression="||")
