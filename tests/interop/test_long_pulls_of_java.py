"""Java's pull consumers get from our broker what Apache's give them, however many messages they ask for.

Those of 5.x say in ``maxMsgBytes`` that they take 2 GiB, which says nothing; only our own readers get more.
"""

from pathlib import Path
from typing import Final

import pytest

from tests.interop.kit_driver import java_classpath, run
from tests.interop.suite_tools import fresh, new_topic
from triomq.client import Message, Producer

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

PROGRAM: Final = Path(__file__).with_name("PullMany.java")


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
@pytest.mark.parametrize("broker", ["triomq", "apache-4.9.7", "apache-5.5.0"])
async def test_java_pull_of_100_gets_32(request: pytest.FixtureRequest, broker: str, version: str) -> None:
    """C.2 scenario 24."""
    kind, _, broker_version = broker.partition("-")
    if kind == "triomq":
        namesrv = request.getfixturevalue("triomq_broker").namesrv
    else:
        namesrv = request.getfixturevalue("apache_brokers").get(broker_version).namesrv
    topic = await new_topic(namesrv, queues=1)
    async with Producer(fresh("producer"), namesrv=namesrv) as producer:
        await producer.send_batch([Message(topic, b"x")] * 100)
    done = run(["java", "-cp", java_classpath(version), PROGRAM, namesrv, fresh("group"), topic, "100"], 60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "32 37"
