"""The status of brokers, ours and Apache's."""

from triomq.cli.commands.health import describe_broker as describe

APACHE_RUNTIME = {
    "brokerVersionDesc": "V4_9_7",
    "bootTimestamp": "1795000000000",
    "runtime": "[ 1 days, 2 hours, 3 minutes, 4 seconds ]",
    "commitLogMinOffset": "100",
    "commitLogMaxOffset": "1100",
    "commitLogDiskRatio": "0.87",
    "earliestMessageTimeStamp": "1794900000000",
    "msgPutTotalTodayNow": "7",
    "msgGetTotalTodayNow": "9",
    "putTps": "12.34999 2.0 3.0",
    "getTransferedTps": "0.0 0.0 0.0",
}
APACHE_SETTINGS = {
    "brokerName": "broker-a",
    "brokerClusterName": "C",
    "fileReservedTime": "72",
    "flushDiskType": "SYNC_FLUSH",
    "storePathRootDir": "/x",
}


def test_a_broker_is_described_by_its_answers() -> None:
    found = describe("127.0.0.1:1", APACHE_RUNTIME, APACHE_SETTINGS)
    assert found == {
        "address": "127.0.0.1:1",
        "broker": "broker-a",
        "cluster": "C",
        "version": "V4_9_7",
        "triomq_version": None,
        "started_ms": 1795000000000,
        "uptime_s": 93_784,
        "durability": "sync",
        "store": "/x",
        "commit_log_bytes": 1000,
        "disk_used_percent": 87,
        "refuses_messages": None,
        "retention_hours": 72,
        "oldest_message_ms": 1794900000000,
        "messages_stored": 7,
        "messages_delivered": 9,
        "stored_per_s": 12.3,
        "delivered_per_s": 0.0,
        "connections": None,
        "consumer_groups": None,
        "producer_groups": None,
        "duplicate_client_ids": None,
        "different_subscriptions": None,
        "stalled_queues": None,
        "denied_requests": None,
        "limited_requests": None,
        "refused_connections": None,
        "given_up_peers": None,
        "shed_sends": None,
    }


def test_missing_or_unreadable_status_fields_are_none() -> None:
    found = describe(
        "127.0.0.1:1", {"runtime": "soon", "commitLogDiskRatio": "NaN", "putTps": "?", "commitLogMinOffset": "-1"}, {}
    )
    assert {name for name, value in found.items() if value is not None} == {"address"}
