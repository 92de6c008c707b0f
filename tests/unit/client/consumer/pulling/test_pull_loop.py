import logging

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.consumer.benches import Bench
from tests.unit.client.consumer.fake_cluster import pull_answer
from triomq.client.consumer.pulling.pull_context import FlowLimits
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import ConnectError
from triomq.protocol.message_queue import QueueOffset
from triomq.protocol.wire.command import RemotingCommand


async def test_full_queue_is_pulled_once_there_is_room(autojump_clock: MockClock, bench: Bench) -> None:
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


async def test_new_limits_are_seen_without_a_removal(autojump_clock: MockClock, bench: Bench) -> None:
    bench.cluster.send(bench.queue, *[b"x"] * 100)
    async with bench.pulling(max_cached_messages=10):
        await wait_all_tasks_blocked()
        bench.context.limits = FlowLimits(40, 10**9, 2_000)
        await trio.sleep(2)
        assert bench.pulled_offsets() == [0, 32]


async def test_unmatched_answer_skips_no_running_messages(autojump_clock: MockClock, bench: Bench) -> None:
    bench.cluster.send(bench.queue, b"x")
    async with bench.pulling() as loop:
        await trio.sleep(16)
        assert loop.statistics().committed_offset == 0
        bench.service.consume()
        assert loop.statistics().committed_offset == 1


async def test_retry_messages_show_their_first_topic(autojump_clock: MockClock, bench: Bench) -> None:
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


@pytest.mark.parametrize("code", [ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST])
async def test_subscription_is_sent_to_broker_that_forgot_it(
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


async def test_the_next_pull_goes_where_the_broker_suggests(autojump_clock: MockClock, bench: Bench) -> None:
    asked: list[int] = []
    real = bench.instance.brokers.find

    def broker_address(broker_name: str, broker_id: int = 0, only_this: bool = False) -> str | None:
        asked.append(broker_id)
        return real(broker_name, broker_id, only_this)

    bench.instance.brokers.find = broker_address  # type: ignore[method-assign]
    suggestions = ["1"]

    def answer(command: RemotingCommand) -> RemotingCommand | None:
        if not suggestions:
            return None
        reply = pull_answer(command, ResponseCode.PULL_RETRY_IMMEDIATELY, 1, min_offset=0, max_offset=1)
        reply.ext_fields["suggestWhichBrokerId"] = suggestions.pop()
        return reply

    bench.cluster.handlers[RequestCode.PULL_MESSAGE] = answer
    bench.cluster.send(bench.queue, b"x")
    async with bench.pulling():
        await wait_all_tasks_blocked()
    assert asked[-1] == 1


async def test_slave_that_fails_is_left_for_the_master(autojump_clock: MockClock, bench: Bench) -> None:
    asked: list[int] = []
    real = bench.instance.brokers.find

    def find(broker_name: str, broker_id: int = 0, only_this: bool = False) -> str | None:
        asked.append(broker_id)
        return real(broker_name, broker_id, only_this)

    def answer(command: RemotingCommand) -> RemotingCommand:
        if asked[-1]:
            raise ConnectError("down")
        reply = pull_answer(command, ResponseCode.PULL_RETRY_IMMEDIATELY, 1, min_offset=0, max_offset=1)
        reply.ext_fields["suggestWhichBrokerId"] = str(int(not any(asked)))
        return reply

    bench.instance.brokers.find = find  # type: ignore[method-assign]
    bench.cluster.handlers[RequestCode.PULL_MESSAGE] = answer
    async with bench.pulling():
        await trio.sleep(60)
    assert (asked.count(1), len(bench.pulls) > 2) == (1, True)


async def test_lone_slave_serves_group_without_changing_progress(autojump_clock: MockClock, bench: Bench) -> None:
    """The master is no longer in the route, and its slave did not have the topic at first."""
    real = bench.instance.brokers.find

    def only_a_slave(broker_name: str, broker_id: int = 0, only_this: bool = False) -> str | None:
        return None if only_this else real(broker_name, broker_id)

    bench.instance.brokers.find = only_a_slave  # type: ignore[method-assign]
    refusals = [ResponseCode.TOPIC_NOT_EXIST]
    bench.cluster.handlers[RequestCode.PULL_MESSAGE] = lambda command: (
        command.reply(refusals.pop()) if refusals else None
    )
    bench.cluster.send(bench.queue, b"a", b"b", b"c")
    async with bench.pulling(first_offset=1) as loop:
        await trio.sleep(10)
        assert bench.service.offsets == [1, 2]
        bench.service.consume()
        await trio.sleep(60)
        assert loop.statistics().committed_offset == 3
        assert {pull.ext_fields["commitOffset"] for pull in bench.pulls} == {"0"}  # a slave would not store it
        bench.instance.brokers.find = real  # type: ignore[method-assign]
        await trio.sleep(60)
        assert [pull.ext_fields["commitOffset"] for pull in bench.pulls].count("3") == 1


async def test_giving_up_records_progress_and_ends_the_loop(autojump_clock: MockClock, bench: Bench) -> None:
    bench.cluster.send(bench.queue, b"x", b"y")
    async with bench.pulling() as loop:
        await wait_all_tasks_blocked()
        bench.service.consume(1)
        loop.give_up()
        bench.service.consume(1)
        bench.cluster.send(bench.queue, b"z")
        await trio.sleep(60)
        assert len(bench.pulls) == 2
        loop.update_progress()
        assert bench.context.offsets.get(bench.queue) == 1
        assert loop.process_queue.dropped


async def test_giving_up_before_the_loop_runs_is_possible(autojump_clock: MockClock, bench: Bench) -> None:
    async with bench.pulling() as loop:
        loop.give_up()
        await trio.sleep(1)
    assert not bench.pulls


async def test_statistics_have_lag_and_pulls(autojump_clock: MockClock, bench: Bench) -> None:
    bench.cluster.send(bench.queue, *[b"x"] * 10)
    async with bench.pulling() as loop:
        await wait_all_tasks_blocked()
        bench.service.consume(4)
        figures = loop.statistics()
        assert (figures.committed_offset, figures.broker_max_offset, figures.lag) == (4, 10, 6)
        assert (figures.cached_messages, figures.pulls, figures.next_pull_offset) == (6, 2, 10)
        await trio.sleep(3)
        assert loop.statistics().last_pull_age_s == pytest.approx(3)


@pytest.mark.parametrize(
    ("policy", "first_offset", "expected"),
    [
        ("earliest", 500, [100, 101, 102]),
        ("latest", 500, []),
        ("nearest", 500, []),
        ("nearest", 3, [100, 101, 102]),
        ("latest", 3, []),
    ],
)
async def test_policy_decides_about_offset_out_of_range(
    autojump_clock: MockClock,
    bench: Bench,
    caplog: pytest.LogCaptureFixture,
    policy: str,
    first_offset: int,
    expected: list[int],
) -> None:
    bench.cluster.min_offsets[bench.queue] = 100
    bench.cluster.send(bench.queue, b"x", b"y", b"z")
    async with bench.pulling(first_offset=first_offset, out_of_range=policy):
        await wait_all_tasks_blocked()
        assert bench.service.offsets == expected
        assert bench.cluster.committed["G", bench.queue] == (100 if expected else 103)
        assert bench.context.corrections == 1
    assert f"offset out of range queue=T@broker-a:0 offset={first_offset} min=100 max=103" in caplog.text


async def test_running_handlers_end_before_a_correction_is_stored(autojump_clock: MockClock, bench: Bench) -> None:
    bench.cluster.send(bench.queue, *[b"x"] * 32)
    async with bench.pulling() as loop:
        await wait_all_tasks_blocked()
        bench.service.busy = 1
        bench.service.consume(10)
        old = loop.process_queue
        loop.move(QueueOffset(3))
        assert old.dropped
        await trio.sleep(5)
        assert ("G", bench.queue) not in bench.cluster.committed
        await trio.sleep(5.1)  # 10 s at most
        assert bench.cluster.committed["G", bench.queue] == 3
        assert loop.process_queue is not old
        assert bench.service.offsets[-1] == 31
        assert loop.statistics().committed_offset == 3


async def test_a_reset_goes_down_and_up(autojump_clock: MockClock, bench: Bench) -> None:
    bench.cluster.send(bench.queue, *[b"x"] * 10)
    async with bench.pulling() as loop:
        await wait_all_tasks_blocked()
        bench.service.consume()
        loop.move(QueueOffset(8))
        loop.move(QueueOffset(2))  # the last one counts
        await wait_all_tasks_blocked()
        assert bench.service.offsets == list(range(2, 10))
        bench.service.consume()
        loop.move(QueueOffset(9))
        await wait_all_tasks_blocked()
        assert bench.service.offsets == [9]


@pytest.mark.parametrize("policy", ["nearest", "earliest", "latest", "raise"])
async def test_moved_valid_offset_is_a_reset(autojump_clock: MockClock, bench: Bench, policy: str) -> None:
    """Brokers of 5.x reset a group like this."""
    bench.cluster.send(bench.queue, *[b"x"] * 10)

    def reset_once(command: RemotingCommand) -> RemotingCommand | None:
        if command.ext_fields["queueOffset"] != "8":
            return None
        return pull_answer(command, ResponseCode.PULL_OFFSET_MOVED, 2, min_offset=0, max_offset=10)

    bench.cluster.handlers[RequestCode.PULL_MESSAGE] = reset_once
    async with bench.pulling(first_offset=8, out_of_range=policy) as loop:
        await trio.sleep(1)
        assert bench.service.offsets == list(range(2, 10))
        assert bench.cluster.committed["G", bench.queue] == loop.statistics().committed_offset == 2
    assert bench.context.corrections == 0


async def test_a_reset_during_a_reset_is_not_lost(autojump_clock: MockClock, bench: Bench) -> None:
    bench.cluster.send(bench.queue, *[b"x"] * 10)
    async with bench.pulling() as loop:
        await wait_all_tasks_blocked()
        bench.service.consume()
        bench.service.busy = 1
        loop.move(QueueOffset(8))
        await trio.sleep(1)
        loop.move(QueueOffset(4))
        bench.service.busy = 0
        await trio.sleep(1)
        assert bench.service.offsets[-6:] == [4, 5, 6, 7, 8, 9]
        assert bench.cluster.committed["G", bench.queue] == 4


async def test_response_in_flight_during_reset_is_dropped(autojump_clock: MockClock, bench: Bench) -> None:
    def answer(command: RemotingCommand) -> RemotingCommand | None:
        if len(bench.pulls) == 1:
            bench.loop.move(QueueOffset(1))  # before its answer is looked at
        return None

    bench.cluster.handlers[RequestCode.PULL_MESSAGE] = answer
    bench.cluster.send(bench.queue, b"x", b"y")
    async with bench.pulling():
        await wait_all_tasks_blocked()
        assert bench.service.offsets == [1]


@pytest.mark.parametrize("first", [0, 400])
async def test_empty_queue_keeps_the_groups_progress(autojump_clock: MockClock, bench: Bench, first: int) -> None:
    """A broker that lost sight of its messages for a while, or a slave that lags."""
    bench.cluster.committed["G", bench.queue] = 500
    async with bench.pulling(first_offset=500):
        await trio.sleep(20)
        bench.cluster.min_offsets[bench.queue] = first
        bench.cluster.send(bench.queue, *[b"x"] * (501 - first))
        await trio.sleep(20)
        assert bench.service.offsets == [500]
        assert bench.cluster.committed["G", bench.queue] == 500


async def test_recreated_queue_is_read_from_its_start(autojump_clock: MockClock, bench: Bench) -> None:
    async with bench.pulling(first_offset=500) as loop:
        await trio.sleep(20)
        bench.cluster.send(bench.queue, b"a", b"b")
        await wait_all_tasks_blocked()
        assert bench.service.offsets == [0, 1]
        bench.service.consume()
        assert loop.statistics().committed_offset == 2


async def test_broker_that_goes_back_is_followed(
    autojump_clock: MockClock, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    back = [True]
    bench.cluster.send(bench.queue, *[b"x"] * 4)
    record = bench.cluster.records[bench.queue][1]
    bench.cluster.handlers[RequestCode.PULL_MESSAGE] = lambda command: (
        pull_answer(command, 0, 2, min_offset=0, max_offset=4, body=record)
        if command.ext_fields["queueOffset"] == "4" and back and back.pop()
        else None
    )
    async with bench.pulling():
        await wait_all_tasks_blocked()
        assert bench.pulled_offsets() == [0, 4, 2, 4]
        assert bench.loop.process_queue.cached_messages == 4  # known ones count once
    assert "broker went back queue=T@broker-a:0 asked=4 next=2" in caplog.text
