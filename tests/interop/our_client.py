"""One suite of our client: against our broker, against Apache's, against clusters of both (C.2 scenario 69).

A test module imports from this one, and lists its ``PLACES``: pairs of a kind of broker or cluster and a
facade.  There is a module for each kind, so that the kinds run side by side.

Each public coroutine function of a module of the suite is a scenario, which takes a name server's address.  It makes
new topics and groups, so all of them share one broker.  Waiting is for a condition; the limit is the runner's.  Their
clients come from ``tests.facades``, so each runs on the three facades of the client.
"""

from collections.abc import Awaitable, Callable, Iterator
from inspect import iscoroutinefunction

import pytest
import trio

from tests.facades import Producer, use_facade
from tests.interop import (
    suite_admin,
    suite_consuming,
    suite_groups,
    suite_namespaces,
    suite_pulling,
    suite_replying,
    suite_retrying,
    suite_sending,
    suite_traces,
    suite_transactions,
)  # fmt: skip
from tests.interop.clusters import CLUSTERS, cluster, is_ours
from tests.interop.kit_driver import ApacheBrokers
from tests.interop.suite_tools import fresh, new_topic
from triomq.client import Message
from triomq.client.cluster.instance import ClientInstance
from triomq.client.consumer.range_reader import RangeReader, ReadLimits
from triomq.protocol.record.record import decode_records

SCENARIO_LIMIT_S = 60
SUITE = (
    *(suite_sending, suite_consuming, suite_retrying, suite_pulling, suite_groups, suite_namespaces, suite_traces),
    *(suite_transactions, suite_replying, suite_admin),
)
SCENARIOS = [
    one
    for module in SUITE
    for name, one in vars(module).items()
    if iscoroutinefunction(one) and one.__module__ == module.__name__ and not name.startswith("_")
]


@pytest.fixture(scope="module")
def place(
    request: pytest.FixtureRequest, apache_brokers: ApacheBrokers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """The name server's address of each kind of broker or cluster, and the facade to use there."""
    broker, facade = request.param
    if broker in CLUSTERS:
        with cluster(broker, tmp_path_factory.mktemp(broker), apache_brokers) as (address, _):
            yield address, facade
    elif broker == "triomq":
        yield request.getfixturevalue("triomq_broker").namesrv, facade
    else:
        yield apache_brokers.get(broker.removeprefix("apache-")).namesrv, facade


@pytest.fixture
def namesrv(place: tuple[str, str]) -> Iterator[str]:
    address, facade = place
    with use_facade(facade):
        yield address


async def test_only_apache_caps_large_pulls_at_32(request: pytest.FixtureRequest, namesrv: str) -> None:
    """Apache's brokers pass over the field that says it."""
    broker, _ = request.node.callspec.params["place"]
    topic = await new_topic(namesrv, queues=1)
    sent = [b"%d" % number for number in range(2000)]
    async with Producer(fresh("producer"), namesrv=namesrv) as producer:
        for begin in range(0, len(sent), 500):
            await producer.send_batch([Message(topic, body, tags="A") for body in sent[begin : begin + 500]])
    async with ClientInstance(namesrv) as instance:
        (queue,) = await instance.routes.subscribe_queues(topic)
        for expression in ("*", "A"):
            async with RangeReader(
                queue,
                0,
                2000,
                group=fresh("group"),
                instance=instance,
                expression=expression,
                limits=ReadLimits(max_messages=512),
            ) as reader:
                answers = await reader.read(2**40)
            messages = [message for answer in answers for message in decode_records(answer.body)]
            assert {message.queue_offset: message.body for message in messages} == dict(enumerate(sent))
            longest = max(len(decode_records(answer.body)) for answer in answers)
            assert longest == (512 if is_ours(broker, queue.broker_name) else 32)


@pytest.mark.parametrize("scenario", [pytest.param(scenario, id=scenario.__name__) for scenario in SCENARIOS])
async def test_our_client(namesrv: str, scenario: Callable[[str], Awaitable[None]]) -> None:
    with trio.fail_after(SCENARIO_LIMIT_S):
        await scenario(namesrv)
