"""Unmodified Apache Java clients, 4.9 and 5.x, against our broker (C.2 scenario 69)."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.interop.clusters import QUICK_CHECKS
from tests.interop.kit_driver import Verdicts, check_verdict, run_scenarios, wanted_scenarios
from tests.processes import Broker, start_triomq
from triomq.testing import RunningBroker

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

SCENARIOS: Final = (
    "send_sync", "send_async", "send_oneway", "send_batch", "send_to_queue", "send_large_body_compressed",
    "send_4MiB_limit", "select_queue_by_key", "push_concurrent_tags", "sql92_filter",
    pytest.param("push_concurrent_star", marks=pytest.mark.smoke), "push_batch_listener", "push_two_groups",
    "push_broadcast", "push_retry_then_succeed", "push_dead_letter", "delayed_message", "timer_message",
    "push_orderly", "push_orderly_two_consumers", "push_orderly_busy_queue", "consumer_running_info",
    "admin_consume_status", "admin_reset_offset_by_time", "admin_reset_offset_offline", "admin_clone_group_offset",
    "admin_consumer_progress", "admin_consumer_connection", "admin_producer_connection", "admin_broker_config",
    "admin_kv_config", "admin_update_group", "rebalance_join_leave", "consume_from_first", "consume_from_last",
    "consume_from_timestamp", "offsets_persist_across_restart", "query_by_key", "query_by_msg_id",
    "query_by_unique_key", "request_reply", "transaction_commit", "transaction_rollback", "transaction_check_back",
    "send_unicode_topic_properties", "admin_consume_queue", "consume_message_directly", "admin_message_track",
    "pull_consumer", "pull_offsets", "lite_pull_assign_seek", "lite_pull_subscribe_poll", "admin_create_topic",
    "admin_topic_route", "admin_topic_list", "admin_topic_stats", "admin_cluster_list", "admin_delete_topic",
    "message_trace", "namespace_send_consume", "mqadmin_commands", "long_poll_latency", "big_burst",
)  # fmt: skip
SYNC_SCENARIOS: Final = (
    *("send_sync", "send_async", "send_oneway", "send_batch", "send_to_queue", "query_by_msg_id"),
    *("transaction_commit", "transaction_rollback", "transaction_check_back"),
)
#: Besides the usual one: headers in ROCKETMQ's binary form, and sends to the broker's port minus 2, as clients before
#: 4.5.1 all do.
WAYS: Final = {
    "JSON": SCENARIOS,
    "ROCKETMQ": ("send_sync", "push_concurrent_star", "pull_consumer"),
    "VIP": ("send_sync", "push_concurrent_star", "offsets_persist_across_restart"),
}


@pytest.fixture(scope="module")
def kit(
    request: pytest.FixtureRequest, triomq_broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Verdicts]:
    """Runs the kit once for each client and way."""

    @cache
    def verdicts(client: str, way: str) -> Verdicts:
        scenarios, logs = wanted_scenarios(request, client=client, way=way), tmp_path_factory.mktemp("logs")
        options = ("--serialize", "ROCKETMQ") if way == "ROCKETMQ" else ()
        with pytest.MonkeyPatch.context() as environment:
            if way == "VIP":
                environment.setenv("JAVA_TOOL_OPTIONS", "-Dcom.rocketmq.sendMessageWithVIPChannel=true")
            return run_scenarios(("run.sh", "--client", client), triomq_broker.namesrv, scenarios, logs, *options)

    return verdicts


@pytest.mark.parametrize("client", ["4.9", "5"], ids=["client 4.9", "client 5"])
@pytest.mark.parametrize(
    ("way", "scenario"),
    [
        pytest.param(way, *getattr(one, "values", [one]), marks=getattr(one, "marks", ()))
        for way, scenarios in WAYS.items()
        for one in scenarios
    ],
)
def test_java_client_passes(kit: Callable[[str, str], Verdicts], client: str, way: str, scenario: str) -> None:
    check_verdict(kit(client, way), scenario)


@pytest.mark.usefixtures("disk_delay")
def test_java_client_passes_with_durability_sync(tmp_path: Path) -> None:
    with start_triomq(tmp_path, *QUICK_CHECKS, "--durability", "sync") as broker:
        sync_verdicts = run_scenarios(("run.sh", "--client", "4.9"), broker.namesrv, SYNC_SCENARIOS, tmp_path)
    for scenario in SYNC_SCENARIOS:
        check_verdict(sync_verdicts, scenario)


@pytest.mark.timeout(1200)
def test_java_client_uses_broker_of_test(rocketmq_broker: RunningBroker, tmp_path: Path) -> None:
    scenario = "push_concurrent_star"
    check_verdict(run_scenarios(("run.sh", "--client", "5"), rocketmq_broker.namesrv, [scenario], tmp_path), scenario)
