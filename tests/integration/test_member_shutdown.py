"""Members that leave while their handlers run, on our broker, by all facades of the client."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.facades import FACADES, Admin, LitePullConsumer, Producer, PushConsumer, use_facade
from tests.integration.broker_wire import namesrv_address, running
from triomq.broker.server import Broker
from triomq.client import Message, MessageExt
from triomq.protocol.message_queue import MessageQueue

GROUP = "G"
MESSAGES = 200


@pytest.fixture(params=FACADES, autouse=True)
def facade(request: pytest.FixtureRequest) -> Iterator[None]:
    with use_facade(request.param):
        yield


async def fill(broker: Broker) -> str:
    address = namesrv_address(broker)
    async with Admin(namesrv=address) as admin, Producer("P", namesrv=address) as producer:
        await admin.create_topic("T", queues=4)
        for number in range(MESSAGES):
            await producer.send(Message("T", b"%d" % number))
    return address


def assert_everybody_left(broker: Broker) -> None:
    group = broker.groups.consumers.get(GROUP)
    assert group is None or not group.client_ids()


async def committed(address: str) -> int:
    async with Admin(namesrv=address) as admin:
        return sum(row.consumer_offset for row in await admin.group_lag(GROUP, "T"))


@pytest.mark.parametrize("orderly", [False, True])
async def test_leaving_member_hands_over_without_loss_or_repeat(tmp_path: Path, orderly: bool) -> None:
    """C.2 scenario 65; the handlers of the facade that blocks are plain functions."""
    handled: Counter[bytes] = Counter()
    running_now = 0
    changed = trio.Event()

    async def on_message(message: MessageExt) -> None:
        nonlocal running_now, changed
        running_now += 1
        await trio.sleep(0.005)
        running_now -= 1
        handled[message.body] += 1
        changed.set()
        changed = trio.Event()

    async def wait_handled(count: int) -> None:
        while len(handled) < count:
            await changed.wait()

    with trio.fail_after(30):
        async with running(tmp_path / "store") as broker:
            address = await fill(broker)

            def member() -> PushConsumer:
                return PushConsumer(
                    GROUP,
                    namesrv=address,
                    on_message=on_message,
                    subscriptions={"T": "*"},
                    start="earliest",
                    orderly=orderly,
                    max_concurrency=4,
                )

            async with member():
                await wait_handled(20)
            assert running_now == 0
            assert handled.total() == await committed(address) < MESSAGES
            assert_everybody_left(broker)
            queues = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(4)]
            assert [broker.groups.locks.owner(GROUP, queue) for queue in queues] == [None] * 4
            async with member():
                await wait_handled(MESSAGES)
            assert handled.total() == MESSAGES
            assert await committed(address) == MESSAGES


async def test_leaving_lite_pull_member_hands_over_committed_offsets(tmp_path: Path) -> None:
    """C.2 scenario 65: messages polled but not committed are redelivered, and none is lost."""
    with trio.fail_after(30):
        async with running(tmp_path / "store") as broker:
            address = await fill(broker)
            seen: Counter[bytes] = Counter()
            async with LitePullConsumer(GROUP, namesrv=address, start="earliest", auto_commit=False) as first:
                await first.subscribe("T")
                seen.update(message.body for message in await first.poll())
                await first.commit()
                again = {message.body for message in await first.poll()}
            assert_everybody_left(broker)
            assert await committed(address) == seen.total()
            async with LitePullConsumer(GROUP, namesrv=address, auto_commit=False) as second:
                await second.subscribe("T")
                while seen.total() < MESSAGES:
                    seen.update(message.body for message in await second.poll())
            assert set(seen.values()) == {1}
            assert again <= set(seen)
