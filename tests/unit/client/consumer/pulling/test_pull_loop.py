import gc
import logging

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.consumer.fake_cluster import pull_answer
from tests.unit.client.consumer.pull_bench import Bench
from triomq.client.consumer.pulling.pull_context import FlowLimits
from triomq.client.consumer.pulling.pull_loop import PullLoop
from triomq.client.consumer.statistics import TopicCounters
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt
from triomq.protocol.units import QueueOffset
from triomq.protocol.wire.command import RemotingCommand


async def test_messages_are_pulled_on_while_handlers_work(autojump_clock: MockClock, bench: Bench) -> None:
    bench.cluster.send(bench.queue, *[b"x"] * 100)
    async with bench.pulling() as loop:
        await wait_all_tasks_blocked()
        assert bench.service.offsets == list(range(100))
        assert bench.pulled_offsets() == [0, 32, 64, 96, 100]
        assert loop.process_queue.cached_messages == 100
        assert all(message.broker_name == "broker-a" for _, message in bench.service.got)


async def test_consumed_messages_are_freed_while_the_next_pull_waits(autojump_clock: MockClock, bench: Bench) -> None:
    def is_alive() -> bool:
        gc.collect()
        return any(isinstance(one, MessageExt) and one.stored_body == b"only here" for one in gc.get_objects())

    bench.cluster.send(bench.queue, b"only here")
    async with bench.pulling():
        await wait_all_tasks_blocked()
        assert is_alive()
        bench.service.consume()
        assert not is_alive()


async def test_messages_carry_queue_bounds_at_pull_time(autojump_clock: MockClock, bench: Bench) -> None:
    bench.cluster.min_offsets[bench.queue] = 5
    bench.cluster.send(bench.queue, b"a", b"b", properties={"mine": "1"})
    async with bench.pulling(first_offset=5):
        await wait_all_tasks_blocked()
        (_, message), _ = bench.service.got
        assert message.properties == {"mine": "1", "MIN_OFFSET": "5", "MAX_OFFSET": "7"}
        assert message.user_properties == {"mine": "1"}


async def test_a_held_pull_is_answered_by_the_message_it_waits_for(autojump_clock: MockClock, bench: Bench) -> None:
    async with bench.pulling():
        await trio.sleep(7)
        bench.cluster.send(bench.queue, b"x")
        await wait_all_tasks_blocked()
        assert bench.service.offsets == [0]
        assert len(bench.pulls) == 2


async def test_pulls_carry_progress_and_subscription_version(autojump_clock: MockClock, bench: Bench) -> None:
    bench.cluster.send(bench.queue, *[b"x"] * 40)
    async with bench.pulling():
        await wait_all_tasks_blocked()
        assert bench.pulls[0].ext_fields["sysFlag"] == "2"  # no progress yet
        bench.service.consume(20)
        await trio.sleep(15.1)  # the held pull ends
        fields = bench.pulls[-1].ext_fields
        assert (fields["sysFlag"], fields["commitOffset"], fields["subVersion"]) == ("3", "20", "77")


async def test_a_full_queue_is_pulled_again_as_soon_as_there_is_room(autojump_clock: MockClock, bench: Bench) -> None:
    bench.cluster.send(bench.queue, *[b"x"] * 100)
    async with bench.pulling(max_cached_messages=50) as loop:
        await wait_all_tasks_blocked()
        assert bench.pulled_offsets() == [0, 32]
        assert loop.statistics().waiting_for == "too many messages are cached"
        started = trio.current_time()
        bench.service.consume(13)
        await wait_all_tasks_blocked()
        assert len(bench.pulls) == 2
        bench.service.consume(1)
        await wait_all_tasks_blocked()
        assert bench.pulled_offsets() == [0, 32, 64]
        assert trio.current_time() == started


async def test_busy_first_message_limits_the_pulled_span(autojump_clock: MockClock, bench: Bench) -> None:
    bench.cluster.send(bench.queue, *[b"x"] * 3_000)
    async with bench.pulling():
        await wait_all_tasks_blocked()
        assert max(bench.service.offsets) < 1_032
        first = bench.service.got.pop(0)
        while bench.service.got:
            bench.service.consume()
            await wait_all_tasks_blocked()
        assert bench.loop.process_queue.span == 2_015  # 63 pulls of 32: offset 2,015 is the first beyond 2,000
        assert bench.loop.statistics().waiting_for == "one message holds back too many after it"
        bench.service.got = [first]
        bench.service.consume()
        await wait_all_tasks_blocked()
        assert bench.service.offsets[0] == 2_016


async def test_bytes_are_limited(autojump_clock: MockClock, bench: Bench) -> None:
    bench.cluster.send(bench.queue, *[b"x" * 10_000] * 40)
    async with bench.pulling(max_cached_bytes=100_000, pull_batch_size=4) as loop:
        await wait_all_tasks_blocked()
        assert loop.process_queue.cached_messages == 12  # the third pull of 4 went over it


async def test_new_limits_are_seen_without_a_removal(autojump_clock: MockClock, bench: Bench) -> None:
    bench.cluster.send(bench.queue, *[b"x"] * 100)
    async with bench.pulling(max_cached_messages=10):
        await wait_all_tasks_blocked()
        bench.context.limits = FlowLimits(40, 10**9, 2_000)
        await trio.sleep(2)
        assert bench.pulled_offsets() == [0, 32]


async def test_only_no_match_answer_advances_offset_past_filtered(autojump_clock: MockClock, bench: Bench) -> None:
    bench.cluster.send(bench.queue, b"x", b"x", properties={"TAGS": "BB"})  # the hash code of "Aa"
    async with bench.pulling(expression="Aa") as loop:
        await wait_all_tasks_blocked()
        assert bench.service.offsets == []
        assert bench.pulled_offsets() == [0, 2]
        assert loop.statistics().committed_offset == 0
        await trio.sleep(16)  # the held pull was answered: nothing new
        assert loop.statistics().committed_offset == 2


async def test_an_unmatched_answer_does_not_pass_messages_in_work(autojump_clock: MockClock, bench: Bench) -> None:
    bench.cluster.send(bench.queue, b"x")
    async with bench.pulling() as loop:
        await trio.sleep(16)
        assert loop.statistics().committed_offset == 0
        bench.service.consume()
        assert loop.statistics().committed_offset == 1


async def test_messages_of_the_retry_topic_show_their_first_topic(autojump_clock: MockClock, bench: Bench) -> None:
    (bench.queue,) = bench.cluster.add_topic("%RETRY%G")
    bench.cluster.send(bench.queue, b"x", properties={"RETRY_TOPIC": "T"}, reconsume_times=1)
    bench.cluster.send(bench.queue, b"y")
    async with bench.pulling(topic="%RETRY%G"):
        await wait_all_tasks_blocked()
        assert [message.topic for _, message in bench.service.got] == ["T", "%RETRY%G"]


@pytest.mark.parametrize(
    ("code", "delay_s", "fields"),
    [
        (ResponseCode.SYSTEM_ERROR, 1.0, {}),
        (ResponseCode.FLOW_CONTROL, 0.02, {}),
        (ResponseCode.SYSTEM_BUSY, 0.3, {"retryAfterMs": "300"}),
    ],
)
async def test_a_failed_pull_is_tried_again(
    autojump_clock: MockClock, bench: Bench, code: int, delay_s: float, fields: dict[str, str]
) -> None:
    answers = [(code, fields), (code, fields)]
    handlers = bench.cluster.handlers
    handlers[RequestCode.PULL_MESSAGE] = lambda command: command.reply(*answers.pop()) if answers else None
    bench.cluster.send(bench.queue, b"x")
    async with bench.pulling():
        await trio.sleep(delay_s * 2 + 0.001)
        assert bench.service.offsets == [0]
        assert len(bench.pulls) == 4


async def test_pull_failure_and_recovery_are_each_logged_once(
    autojump_clock: MockClock, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await bench.instance.routes.find("T")
    bench.cluster.down = True
    bench.cluster.send(bench.queue, b"x")
    async with bench.pulling() as loop:
        await trio.sleep(10)
        assert loop.statistics().waiting_for == "down"
        assert bench.context.complaints == {"down": 1}
        bench.cluster.down = False
        await trio.sleep(2)
        assert bench.service.offsets == [0]
        assert loop.statistics().waiting_for == ""
        assert not bench.context.complaints
    assert [record.getMessage() for record in caplog.records] == [
        "pull failed, retrying queue=T@broker-a:0 error=down",
        "pulls work again queue=T@broker-a:0 error=down",
    ]


async def test_one_trouble_of_many_queues_is_logged_once(
    autojump_clock: MockClock, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await bench.instance.routes.find("T")
    bench.cluster.down = True
    async with bench.pulling() as loop, trio.open_nursery() as nursery:
        other = PullLoop(
            bench.context, loop._subscription, bench.queue._replace(queue_id=1), QueueOffset(0), TopicCounters()
        )
        nursery.start_soon(other.run)
        await trio.sleep(3)
        assert bench.context.complaints == {"down": 2}
        other.give_up()
        await wait_all_tasks_blocked()
        assert bench.context.complaints == {"down": 1}
    assert caplog.text.count("pull failed") == 1


@pytest.mark.parametrize("code", [ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST])
async def test_a_broker_that_forgot_the_subscription_is_told(
    autojump_clock: MockClock, bench: Bench, code: int
) -> None:
    bench.cluster.handlers[RequestCode.PULL_MESSAGE] = lambda command: command.reply(code)
    async with bench.pulling():
        await wait_all_tasks_blocked()
        assert bench.announced == 1
        await trio.sleep(0.15)  # it should know now
        assert (bench.announced, len(bench.pulls)) == (2, 2)
        await trio.sleep(5)
        assert len(bench.pulls) == 7


async def test_an_answer_that_cannot_be_read_loses_nothing(autojump_clock: MockClock, bench: Bench) -> None:
    broken = [b"\0" * 100]
    bench.cluster.handlers[RequestCode.PULL_MESSAGE] = lambda command: (
        pull_answer(command, 0, 1, min_offset=0, max_offset=1, body=broken.pop()) if broken else None
    )
    bench.cluster.send(bench.queue, b"x")
    async with bench.pulling():
        await trio.sleep(1.5)
        assert bench.service.offsets == [0]


async def test_broker_without_long_polling_is_polled_with_pauses(autojump_clock: MockClock, bench: Bench) -> None:
    bench.cluster.handlers[RequestCode.PULL_MESSAGE] = lambda command: pull_answer(
        command, ResponseCode.PULL_NOT_FOUND, 0, min_offset=0, max_offset=0
    )
    async with bench.pulling():
        await trio.sleep(0.99)
        assert len(bench.pulls) == 20


async def test_a_pull_interval_is_kept(autojump_clock: MockClock, bench: Bench) -> None:
    bench.cluster.send(bench.queue, *[b"x"] * 96)
    async with bench.pulling(pull_interval_s=1.0):
        await trio.sleep(1.5)
        assert bench.pulled_offsets() == [0, 32]


async def test_the_next_pull_goes_where_the_broker_suggests(autojump_clock: MockClock, bench: Bench) -> None:
    asked: list[int] = []
    real = bench.instance.brokers.find

    def broker_address(broker_name: str, broker_id: int = 0, only_this: bool = False) -> str | None:
        asked.append(broker_id)
        return real(broker_name, broker_id, only_this)

    bench.instance.brokers.find = broker_address  # type: ignore[method-assign]
    first = True

    def answer(command: RemotingCommand) -> RemotingCommand | None:
        nonlocal first
        if not first:
            return None
        first = False
        reply = pull_answer(command, ResponseCode.PULL_RETRY_IMMEDIATELY, 1, min_offset=0, max_offset=1)
        reply.ext_fields["suggestWhichBrokerId"] = "1"
        return reply

    bench.cluster.handlers[RequestCode.PULL_MESSAGE] = answer
    bench.cluster.send(bench.queue, b"x")
    async with bench.pulling():
        await wait_all_tasks_blocked()
    assert asked[-1] == 1


async def test_giving_up_notes_what_is_consumed_and_ends_the_loop(autojump_clock: MockClock, bench: Bench) -> None:
    bench.cluster.send(bench.queue, b"x", b"y")
    async with bench.pulling() as loop:
        await wait_all_tasks_blocked()
        bench.service.consume(1)
        loop.give_up()
        bench.service.consume(1)
        bench.cluster.send(bench.queue, b"z")
        await trio.sleep(60)
        assert len(bench.pulls) == 2
        assert bench.context.offsets.get(bench.queue) == 1
        assert loop.process_queue.dropped


async def test_giving_up_before_the_loop_runs_is_possible(autojump_clock: MockClock, bench: Bench) -> None:
    async with bench.pulling() as loop:
        loop.give_up()
        await trio.sleep(1)
    assert not bench.pulls


async def test_statistics_tell_lag_and_pulls(autojump_clock: MockClock, bench: Bench) -> None:
    bench.cluster.send(bench.queue, *[b"x"] * 10)
    async with bench.pulling() as loop:
        await wait_all_tasks_blocked()
        bench.service.consume(4)
        figures = loop.statistics()
        assert (figures.committed_offset, figures.broker_max_offset, figures.lag) == (4, 10, 6)
        assert (figures.cached_messages, figures.pulls, figures.next_pull_offset) == (6, 2, 10)
        await trio.sleep(3)
        assert loop.statistics().last_pull_age_s == pytest.approx(3)
        assert loop.is_stalled(2.5)
        assert not loop.is_stalled(120)


def test_a_loop_is_made_with_its_first_offset_as_progress(bench: Bench) -> None:
    async def main() -> None:
        async with bench.pulling(first_offset=9):
            assert bench.context.offsets.get(MessageQueue("T", "broker-a", 0)) == 9

    trio.run(main)
