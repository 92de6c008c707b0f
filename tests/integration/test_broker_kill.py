"""A broker that is killed and started again, as its clients live through it."""

from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from tests.integration.broker_wire import wait_for
from tests.processes import start_triomq
from triomq.client import Admin, Message, MessageExt, Producer, PushConsumer
from triomq.protocol.errors import TriomqError


@pytest.mark.parametrize("orderly", [False, True])
async def test_broker_kill_costs_consumers_only_duplicates(tmp_path: Path, orderly: bool) -> None:
    """C.2 scenario 66; in order, redelivered messages included."""
    seen: list[int] = []

    async def on_message(message: MessageExt) -> None:
        await trio.lowlevel.checkpoint()
        seen.append(int(message.body))

    with ExitStack() as brokers:
        first = brokers.enter_context(start_triomq(tmp_path))
        async with Admin(namesrv=first.namesrv) as admin:
            await admin.create_topic("T", queues=1)
        async with (
            Producer("P", namesrv=first.namesrv) as producer,
            PushConsumer(
                "G",
                namesrv=first.namesrv,
                on_message=on_message,
                subscriptions={"T": "*"},
                start="earliest",
                orderly=orderly,
            ),
        ):
            for number in range(100):
                await producer.send(Message("T", b"%d" % number))
            await wait_for(lambda: len(seen) > 50)
            first.kill()
            ports = ("--listen", first.broker, "--namesrv-listen", first.namesrv)
            brokers.enter_context(start_triomq(tmp_path, *ports))
            for number in range(100, 200):
                await send_until_it_is_stored(producer, number)
            await wait_for(lambda: set(seen) == set(range(200)))
    if orderly:
        begins = [at for at in range(1, len(seen)) if seen[at] != seen[at - 1] + 1]
        assert all(seen[at] <= seen[at - 1] for at in begins), "a message was passed over"


async def send_until_it_is_stored(producer: Producer, number: int) -> None:
    with trio.fail_after(30):
        while True:
            try:
                await producer.send(Message("T", b"%d" % number))
            except TriomqError:
                await trio.sleep(0.1)
            else:
                return
