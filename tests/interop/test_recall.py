"""Delayed messages taken back by Apache's Java 5.x client and by ours, at our broker and at Apache's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import trio

from tests.interop.kit_driver import ApacheBrokers, java_classpath
from tests.interop.suite_tools import Inbox, fresh, new_topic, push_consumer
from tests.processes import Broker
from triomq.client import BrokerResponseError, Message, Producer, ProtocolError

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

PROGRAM: Final = Path(__file__).parent / "RecallMessages.java"
DELAY_S: Final = 8
LIMIT_S: Final = 90


@pytest.fixture(params=["triomq", "apache-5.5.0"])
def namesrv(
    request: pytest.FixtureRequest, triomq_broker: Broker, apache_brokers: ApacheBrokers, tmp_path: Path
) -> Iterator[str]:
    if request.param == "triomq":
        yield triomq_broker.namesrv
        return
    folder = tmp_path / "apache"
    yield apache_brokers.start("5.5.0", folder, {"recallMessageEnable": "true"}).namesrv
    apache_brokers.stop(folder)


async def test_java_and_triomq_recall_messages(namesrv: str) -> None:
    """One message by each client; one that Java sent is taken back by us."""
    topic, inbox = await new_topic(namesrv, queues=1), Inbox()
    command = ("java", "-cp", java_classpath("5.5.0"), str(PROGRAM), namesrv, fresh("java"), topic, f"{DELAY_S * 1000}")
    with trio.fail_after(LIMIT_S):
        async with (
            push_consumer(namesrv, topic, inbox.take),
            Producer(fresh("P"), namesrv=namesrv) as producer,
        ):
            done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
            assert done.returncode == 0, done.stderr
            await producer.recall(done.stdout.decode().strip())
            ours = await producer.send(Message(topic, b"taken back by its sender", delay_s=DELAY_S))
            assert ours.recall_handle is not None
            assert await producer.recall(ours.recall_handle) == ours.message_id
            await producer.send(Message(topic, b"the last", delay_s=DELAY_S))
            await inbox.wait_count(2)
            await trio.sleep(2)
            assert sorted(inbox.bodies()) == [b"delivered", b"the last"]
            with pytest.raises(BrokerResponseError, match="timestamp invalid"):
                await producer.recall(ours.recall_handle)
            with pytest.raises(ProtocolError, match="recall handle is invalid"):
                await producer.recall("nonsense")
