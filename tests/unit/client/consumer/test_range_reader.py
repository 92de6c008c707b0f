import pytest
import trio
from trio.testing import MockClock

from tests.unit.client.consumer.benches import QUEUE, fill
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


def at_most(cluster: FakeCluster, count: int) -> list[int]:
    """Let the broker give few messages for a pull, as from disk; return how many each pull asks for."""
    asked: list[int] = []

    def limited(command: RemotingCommand) -> None:
        asked.append(int(command.ext_fields["maxMsgNums"]))
        command.ext_fields["maxMsgNums"] = str(min(count, asked[-1]))

    cluster.handlers[RequestCode.PULL_MESSAGE] = limited
    return asked


def reader_of(cluster: FakeCluster, begin: int, end: int, **limits: int) -> RangeReader:
    return RangeReader(QUEUE, begin, end, group="G", instance=cluster.instance, limits=ReadLimits(**limits))


async def test_range_is_read_in_order_and_ends(cluster: FakeCluster) -> None:
    fill(cluster, 500)
    async with reader_of(cluster, 7, 333) as reader:
        assert await read_all(reader) == list(range(7, 333))
        assert await reader.read(1) == []
    pulls = cluster.of(RequestCode.PULL_MESSAGE)
    assert len(pulls) == 11
    assert {(pull.ext_fields["sysFlag"], pull.ext_fields["suspendTimeoutMillis"]) for pull in pulls} == {("4", "0")}
    assert not cluster.committed


@pytest.mark.parametrize("given", [1, 5, 8, 31])
async def test_gaps_of_short_answers_are_filled(cluster: FakeCluster, given: int) -> None:
    fill(cluster, 200)
    at_most(cluster, given)
    async with reader_of(cluster, 0, 200) as reader:
        found = await read_all(reader)
    assert sorted(set(found)) == list(range(200))
    assert len(found) < 250
    assert len(cluster.of(RequestCode.PULL_MESSAGE)) < 2 * 200 / given + 8


async def test_reader_backs_off_large_pulls(cluster: FakeCluster) -> None:
    """An Apache broker gives 32; each try for more leaves gaps, which cost a pull each."""
    fill(cluster, 20_000)
    asked = at_most(cluster, 32)
    async with reader_of(cluster, 0, 20_000, max_messages=512) as reader:
        found = await read_all(reader)
    assert sorted(set(found)) == list(range(20_000))
    needed = 20_000 // 32
    assert needed <= len(asked) < needed * 1.1
    first, second = asked[: len(asked) // 4], asked[len(asked) // 2 :]
    assert sum(number > 32 for number in first) > 0
    assert sum(number > 32 for number in second) < len(second) * 0.05


async def test_only_so_many_pulls_are_under_way(cluster: FakeCluster, autojump_clock: MockClock) -> None:
    fill(cluster, 1000)
    under_way = most = 0

    async def slowly(command: RemotingCommand) -> RemotingCommand:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await trio.sleep(1)
        under_way -= 1
        return await cluster._pull(command, QUEUE)

    cluster.handlers[RequestCode.PULL_MESSAGE] = slowly
    async with reader_of(cluster, 0, 1000, pulls_in_flight=4) as reader:
        assert await read_all(reader) == list(range(1000))
    assert most == 4
    async with reader_of(cluster, 0, 200, in_flight_bytes=1) as reader:
        most = 0
        assert await read_all(reader) == list(range(200))
    assert most == 1


async def test_correction_is_last_and_seek_continues(cluster: FakeCluster) -> None:
    cluster.min_offsets[QUEUE] = 50
    fill(cluster, 100)
    async with reader_of(cluster, 0, 150) as reader:
        (answer,) = await reader.read(1)
        assert (answer.status, answer.next_begin_offset, reader.position) == (PullStatus.OFFSET_ILLEGAL, 50, 0)
        reader.seek(50)
        assert await read_all(reader) == list(range(50, 150))


async def test_read_continues_after_an_error(cluster: FakeCluster) -> None:
    fill(cluster, 300)
    async with reader_of(cluster, 0, 300) as reader:
        found = offsets(await reader.read(1))
        cluster.down = True
        with pytest.raises(ConnectError):
            await read_into(found, reader)
        cluster.down = False
        found += await read_all(reader)
    assert found == list(range(300))


async def test_what_came_before_an_error_is_not_lost(cluster: FakeCluster) -> None:
    fill(cluster, 96)

    def refuse_the_second(command: RemotingCommand) -> RemotingCommand | None:
        if command.ext_fields["queueOffset"] != "32":
            return None
        return command.reply(ResponseCode.TOPIC_NOT_EXIST, remark="gone")

    cluster.handlers[RequestCode.PULL_MESSAGE] = refuse_the_second
    async with reader_of(cluster, 0, 96) as reader:
        assert offsets(await reader.read(_EVERYTHING)) == list(range(32))
        with pytest.raises(TopicNotExistError):
            await reader.read(_EVERYTHING)


@pytest.mark.parametrize("stuck_from", [0, 64])
async def test_a_cancelled_read_loses_no_answer(
    autojump_clock: MockClock, cluster: FakeCluster, stuck_from: int
) -> None:
    """Its answers so far were not returned to any caller."""
    fill(cluster, 100)
    cluster.handlers[RequestCode.PULL_MESSAGE] = lambda command: (
        _for_ever(trio.Event()) if int(command.ext_fields["queueOffset"]) >= stuck_from else None
    )
    async with reader_of(cluster, 0, 100) as reader:
        with trio.move_on_after(1):
            await reader.read(_EVERYTHING)
        assert not reader._window
        cluster.handlers.clear()
        assert await read_all(reader) == list(range(100))


async def _for_ever(never: trio.Event) -> RemotingCommand:
    await never.wait()
    raise AssertionError


async def test_waiter_ends_when_another_task_leaves(cluster: FakeCluster, autojump_clock: MockClock) -> None:
    fill(cluster, 100)
    cluster.handlers[RequestCode.PULL_MESSAGE] = lambda _: _for_ever(trio.Event())
    told: list[ClientClosedError] = []

    async def wait(reader: RangeReader) -> None:
        with pytest.raises(ClientClosedError) as caught:
            await reader.read(1)
        told.append(caught.value)

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            async with reader_of(cluster, 0, 100) as reader:
                nursery.start_soon(wait, reader)
                await trio.sleep(1)
    assert len(told) == 1


async def test_waiting_poll_follows_seek_of_another_task(cluster: FakeCluster, autojump_clock: MockClock) -> None:
    fill(cluster, 100)
    cluster.handlers[RequestCode.PULL_MESSAGE] = lambda _: _for_ever(trio.Event())
    found: list[int] = []
    with trio.fail_after(10):
        async with (
            reader_of(cluster, 0, 100) as reader,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(read_into, found, reader)
            await trio.sleep(1)
            del cluster.handlers[RequestCode.PULL_MESSAGE]
            reader.seek(90)
    assert found == list(range(90, 100))


async def test_impossible_settings_are_refused(cluster: FakeCluster) -> None:
    with pytest.raises(ClientClosedError):
        await reader_of(cluster, 0, 10).read(1)
    for begin, limits in ((-1, {}), (0, {"pulls_in_flight": 0}), (0, {"max_bytes": 0})):
        with pytest.raises(ConfigError):
            reader_of(cluster, begin, 10, **limits)
    with pytest.raises(SubscriptionParseError):
        RangeReader(QUEUE, 0, 10, group="G", instance=cluster.instance, expression="||")
