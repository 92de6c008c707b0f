"""Unmodified Java and Go clients with clusters of two brokers, ours and Apache's; the name servers agree.

Runs the scenarios to which a second broker matters; with ``WHOLE_KIT=1`` in the environment it runs all.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import trio

from tests.interop.clusters import CLUSTERS, cluster
from tests.interop.kit_driver import ApacheBrokers, check_verdict, run_scenarios
from tests.interop.suite_tools import new_topic
from tests.interop.test_go_client import SCENARIOS as WHOLE_GO
from tests.interop.test_java_clients import SCENARIOS as WHOLE_JAVA
from triomq.client import Admin
from triomq.protocol.bodies.route import TopicRouteData

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

LIMIT_S: Final = 60
WHOLE_KIT: Final = "WHOLE_KIT" in os.environ
JAVA: Final = (
    [getattr(one, "values", [one])[0] for one in WHOLE_JAVA]
    if WHOLE_KIT
    else (
        "select_queue_by_key", "push_broadcast", "push_retry_then_succeed", "push_orderly_two_consumers",
        "rebalance_join_leave", "request_reply", "transaction_check_back", "admin_clone_group_offset",
        "admin_consumer_progress", "mqadmin_commands",
    )
)  # fmt: skip
#: Go's client registers a producer at one broker only; a reply may arrive over the other, as with Apache's.
GO: Final = (
    [one for one in WHOLE_GO if one != "request_reply"]
    if WHOLE_KIT
    else ("push_concurrent_tags", "push_orderly", "transaction_commit")
)


def left_out(kind: str, client: str) -> set[str]:
    """Return the scenarios that unmodified Java clients fail with a cluster of Apache's brokers."""
    refused = set()
    if "4.9.7" in CLUSTERS[kind]:
        refused |= {"timer_message"}
        if client == "5":  # requests 351 and 361
            refused |= {"lite_pull_subscribe_poll", "admin_reset_offset_by_time"}
    if (kind, client) == ("two-apache", "5"):
        refused |= {"admin_clone_group_offset", "admin_consumer_progress", "mqadmin_commands"}
    if (kind, client) == ("mixed-5", "4.9"):  # the tool expects a figure that 5.x has under another name
        refused |= {"mqadmin_commands"}
    return refused


@pytest.fixture(scope="module", params=CLUSTERS)
def name_servers(
    request: pytest.FixtureRequest, apache_brokers: ApacheBrokers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[str]]:
    """That to use first, then others that know the same brokers."""
    with cluster(request.param, tmp_path_factory.mktemp(request.param), apache_brokers) as (used, known):
        yield [used, *(name_server for name_server in known if name_server != used)]


async def test_all_name_servers_answer_with_the_same_route(name_servers: list[str]) -> None:
    with trio.fail_after(LIMIT_S):
        topic = await new_topic(name_servers[0], queues=8)
        for name_server in name_servers:
            async with Admin(namesrv=name_server) as admin, Admin(namesrv=name_servers[0]) as first:
                expected = _sorted(await first.topic_route(topic))
                while _sorted(route := await admin.topic_route(topic)) != expected:  # noqa: ASYNC110  # see until
                    await trio.sleep(0.1)
                assert sorted(data.broker_name for data in route.broker_datas) == ["broker-a", "broker-b"]
                queues = [(data.read_queue_nums, data.write_queue_nums, data.perm) for data in route.queue_datas]
                assert queues == [(4, 4, 6)] * 2
                assert await admin.cluster() == await first.cluster()
                assert set(await admin.topics()) >= {topic, "TBW102"}


def _sorted(route: TopicRouteData) -> tuple[list[str], list[str]]:
    """The brokers are in the order in which they registered."""
    return sorted(map(repr, route.broker_datas)), sorted(map(repr, route.queue_datas))


@pytest.mark.parametrize("client", ["4.9", "5"])
def test_java_clients_pass(
    request: pytest.FixtureRequest, name_servers: list[str], client: str, tmp_path: Path
) -> None:
    kind = request.node.callspec.params["name_servers"]
    refused = left_out(kind, client)
    scenarios = [scenario for scenario in JAVA if scenario not in refused]
    verdicts = run_scenarios(("run.sh", "--client", client), name_servers[0], scenarios, tmp_path)
    unknown = "the broker does not know request code" if (kind, client) == ("two-apache", "5") else None
    for scenario in scenarios:
        if unknown is None or unknown not in verdicts[scenario]["detail"]:
            check_verdict(verdicts, scenario)


@pytest.mark.go
def test_the_go_client_passes(name_servers: list[str], tmp_path: Path) -> None:
    verdicts = run_scenarios(("run-go.sh",), name_servers[0], GO, tmp_path)
    for scenario in GO:
        check_verdict(verdicts, scenario)
