"""Unmodified Apache Java clients, 4.9 and 5.x, against our broker (C.2 scenario 69)."""

from pathlib import Path
from typing import Final

import pytest

from tests.interop.clusters import QUICK_CHECKS
from tests.interop.kit_driver import Verdicts, check_verdict, run_scenarios, wanted_scenarios
from tests.processes import Broker, start_triomq

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

SCENARIOS: Final = (
    "send_sync",
    "send_async",
    "send_oneway",
    "send_batch",
    "send_to_queue",
    "send_large_body_compressed",
    "send_4MiB_limit",
    "select_queue_by_key",
    "push_concurrent_tags",
    "sql92_filter",
    pytest.param("push_concurrent_star", marks=pytest.mark.smoke),
    "push_batch_listener",
    "push_two_groups",
    "push_broadcast",
    "push_retry_then_succeed",
    "push_dead_letter",
    "delayed_message",
    "timer_message",
    "push_orderly",
    "push_orderly_two_consumers",
    "push_orderly_busy_queue",
    "consumer_running_info",
    "admin_consume_status",
    "admin_reset_offset_by_time",
    "admin_reset_offset_offline",
    "admin_clone_group_offset",
    "admin_consumer_progress",
    "admin_consumer_connection",
    "admin_producer_connection",
    "admin_broker_config",
    "admin_kv_config",
    "admin_update_group",
    "rebalance_join_leave",
    "consume_from_first",
    "consume_from_last",
    "consume_from_timestamp",
    "offsets_persist_across_restart",
    "query_by_key",
    "query_by_msg_id",
    "query_by_unique_key",
    "request_reply",
    "transaction_commit",
    "transaction_rollback",
    "transaction_check_back",
    "send_unicode_topic_properties",
    "admin_consume_queue",
    "consume_message_directly",
    "admin_message_track",
    "pull_consumer",
    "pull_offsets",
    "lite_pull_assign_seek",
    "lite_pull_subscribe_poll",
    "admin_create_topic",
    "admin_topic_route",
    "admin_topic_list",
    "admin_topic_stats",
    "admin_cluster_list",
    "admin_delete_topic",
    "message_trace",
    "namespace_send_consume",
    "mqadmin_commands",
    "long_poll_latency",
    "big_burst",
)
SYNC_SCENARIOS: Final = (
    *("send_sync", "send_async", "send_oneway", "send_batch", "send_to_queue", "query_by_msg_id"),
    *("transaction_commit", "transaction_rollback", "transaction_check_back"),
)
VIP_SCENARIOS: Final = ("send_sync", "push_concurrent_star", "offsets_persist_across_restart")
BINARY_HEADER_SCENARIOS: Final = ("send_sync", "push_concurrent_star", "pull_consumer")


@pytest.fixture(scope="module", params=["4.9", "5"], ids=["client 4.9", "client 5"])
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def verdicts(
    request: pytest.FixtureRequest,
    client: str,
    triomq_broker: Broker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Verdicts:
    """One run of the kit for each client, headers in JSON."""
    return run_scenarios(
        ("run.sh", "--client", client),
        triomq_broker.namesrv,
        wanted_scenarios(request, client=client, header="JSON"),
        tmp_path_factory.mktemp("logs"),
    )


@pytest.fixture(scope="module")
def binary_verdicts(
    request: pytest.FixtureRequest,
    client: str,
    triomq_broker: Broker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Verdicts:
    """One run of the kit for each client, headers in ROCKETMQ's binary form."""
    scenarios = wanted_scenarios(request, client=client, header="ROCKETMQ")
    logs = tmp_path_factory.mktemp("logs")
    return run_scenarios(
        ("run.sh", "--client", client), triomq_broker.namesrv, scenarios, logs, "--serialize", "ROCKETMQ"
    )


@pytest.fixture(scope="module")
def vip_verdicts(
    request: pytest.FixtureRequest,
    client: str,
    triomq_broker: Broker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Verdicts:
    """One run of the kit for each client that sends to the broker's port minus 2, as clients before 4.5.1 all do."""
    scenarios = wanted_scenarios(request, client=client, channel="VIP")
    logs = tmp_path_factory.mktemp("logs")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JAVA_TOOL_OPTIONS", "-Dcom.rocketmq.sendMessageWithVIPChannel=true")
        return run_scenarios(("run.sh", "--client", client), triomq_broker.namesrv, scenarios, logs)


@pytest.mark.parametrize("header", ["JSON"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_java_client_passes(verdicts: Verdicts, scenario: str, header: str) -> None:
    check_verdict(verdicts, scenario)


@pytest.mark.usefixtures("disk_delay")
def test_java_client_passes_with_durability_sync(tmp_path: Path) -> None:
    with start_triomq(tmp_path, *QUICK_CHECKS, "--durability", "sync") as broker:
        sync_verdicts = run_scenarios(("run.sh", "--client", "4.9"), broker.namesrv, SYNC_SCENARIOS, tmp_path)
    for scenario in SYNC_SCENARIOS:
        check_verdict(sync_verdicts, scenario)


@pytest.mark.parametrize("header", ["ROCKETMQ"])
@pytest.mark.parametrize("scenario", BINARY_HEADER_SCENARIOS)
def test_java_client_with_binary_headers_passes(binary_verdicts: Verdicts, scenario: str, header: str) -> None:
    check_verdict(binary_verdicts, scenario)


@pytest.mark.parametrize("channel", ["VIP"])
@pytest.mark.parametrize("scenario", VIP_SCENARIOS)
def test_java_client_with_the_vip_channel_on_passes(vip_verdicts: Verdicts, scenario: str, channel: str) -> None:
    check_verdict(vip_verdicts, scenario)
