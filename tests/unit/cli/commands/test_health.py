"""The status of brokers, ours and Apache's."""

from triomq.cli.commands.health import describe_broker

RUNTIME = {
    "runtime": "[ 1 days, 2 hours, 3 minutes, 4 seconds ]",
    "commitLogMinOffset": "100",
    "commitLogMaxOffset": "1100",
    "commitLogDiskRatio": "0.87",
    "putTps": "12.34999 2.0 3.0",
    "getTransferedTps": "0.0 0.0 0.0",
    "triomqShedSends": "5",
}


def known(runtime: dict[str, str], settings: dict[str, str]) -> dict[str, object]:
    return {name: value for name, value in describe_broker("a:1", runtime, settings).items() if value is not None}


def test_status_is_computed_from_the_answers() -> None:
    assert known(RUNTIME, {"flushDiskType": "SYNC_FLUSH", "fileReservedTime": "72"}) == {
        "address": "a:1",
        "uptime_s": 93_784,
        "durability": "sync",
        "commit_log_bytes": 1000,
        "disk_used_percent": 87,
        "retention_hours": 72,
        "stored_per_s": 12.3,
        "delivered_per_s": 0.0,
        "shed_sends": 5,
    }


def test_missing_or_unreadable_status_fields_are_none() -> None:
    unreadable = {"runtime": "soon", "commitLogDiskRatio": "NaN", "putTps": "?", "commitLogMinOffset": "-1"}
    assert known(unreadable, {}) == {"address": "a:1"}
