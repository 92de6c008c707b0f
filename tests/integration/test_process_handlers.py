"""Consumers with ``executor="process"``, in all facades, against our broker."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import trio

from tests import process_handlers
from tests.facades import Admin, Producer, PushConsumer, use_facade
from tests.processes import Broker, start_triomq
from triomq.client import ConsumeHook, ConsumerConfig, ConsumeReturnType, HookContext, Message, MessageQueue

KINDS = {"on_message": process_handlers.on_message, "on_messages": process_handlers.on_messages}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with start_triomq(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


class Calls(ConsumeHook):
    """Notes the calls of the handler; hooks stay in the consumer's process."""

    def __init__(self) -> None:
        self.token = trio.lowlevel.current_trio_token()
        self.changed = trio.Event()
        self.done: list[tuple[int, int, ConsumeReturnType | None]] = []

    def after(self, context: HookContext) -> None:
        self.done += [(one.queue_id, one.queue_offset, context.return_type) for one in context.messages]
        self.token.run_sync_soon(self.changed.set)

    async def until(self, count: int) -> None:
        while len(self.done) < count:
            self.changed = trio.Event()
            if len(self.done) < count:
                await self.changed.wait()


@pytest.mark.parametrize(
    ("facade", "orderly", "kind"),
    [*product(["trio"], [False, True], KINDS), ("sync", False, "on_message"), ("asyncio", True, "on_messages")],
)
async def test_handlers_in_processes_consume(
    broker: Broker, facade: str, orderly: bool, kind: str, tmp_path: Path
) -> None:
    topic = f"{facade}-{orderly}-{kind}"
    calls = Calls()
    settings = ConsumerConfig(
        executor="process", max_concurrency=2, batch_max_size=1, suspend_queue_s=0.01, max_reconsume_times=0
    )
    with trio.fail_after(40), use_facade(facade):
        async with Admin(namesrv=broker.namesrv) as admin, Producer("P", namesrv=broker.namesrv) as producer:
            await admin.create_topic(topic, queues=2)
            for number in range(10):
                body = f"die-once {tmp_path / 'died'}" if number == 4 else "succeed"
                queue = MessageQueue(topic, "broker-a", number % 2)
                await producer.send(Message(topic, body.encode()), queue=queue)
        async with PushConsumer(
            f"G-{topic}",
            namesrv=broker.namesrv,
            subscriptions={topic: "*"},
            start="earliest",
            orderly=orderly,
            settings=settings,
            hooks=[calls],
            **{kind: KINDS[kind]},  # type: ignore[arg-type]
        ):
            await calls.until(11 if orderly else 10)
    offsets = [[call[1] for call in calls.done if call[0] == queue_id] for queue_id in (0, 1)]
    if orderly:
        assert offsets == [[0, 1, 2, 2, 3, 4], [0, 1, 2, 3, 4]]  # the message that killed its process blocks its queue
    else:
        assert [sorted(one) for one in offsets] == [[0, 1, 2, 3, 4]] * 2
    assert [call for call in calls.done if call[2] is not ConsumeReturnType.SUCCESS] == [
        (0, 2, ConsumeReturnType.EXCEPTION)
    ]
