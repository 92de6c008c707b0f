"""Settings as Java properties text."""

from pathlib import Path

import orjson
import pytest

from tests.unit.broker.recording import MakeBroker, Peer
from triomq.broker.processors.admin_settings import properties_text
from triomq.protocol.codes import RequestCode
from triomq.storage.config import Durability
from triomq.storage.delays import DEFAULT_DELAY_LEVELS, DelayLevels


def settings(peer: Peer) -> dict[str, str]:
    lines = bytes(peer.get(RequestCode.GET_BROKER_CONFIG).body).decode("ascii").splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_the_settings_are_told_under_rocketmqs_names(peer: Peer, tmp_path: Path) -> None:
    told = settings(peer)
    expected = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": "0",
        "brokerIP1": "192.0.2.1",
        "listenPort": "10911",
        "autoCreateTopicEnable": "true",
        "storePathRootDir": str(tmp_path / "store"),
        "mappedFileSizeCommitLog": "262144",
        "maxMessageSize": "4194304",
        "flushDiskType": "ASYNC_FLUSH",
        "flushIntervalCommitLog": "500",
        "fileReservedTime": "72",
        "deleteWhen": "04",
        "diskMaxUsedSpaceRatio": "75",
        "cleanFileForciblyEnable": "true",
        "cleanResourceInterval": "10000",
        "serverChannelMaxIdleTimeSeconds": "120",
        "flushConsumerOffsetInterval": "5000",
        "flushDelayOffsetInterval": "10000",
        "messageDelayLevel": DEFAULT_DELAY_LEVELS,
    }
    assert {name: told.get(name) for name in expected} == expected


def test_what_is_told_is_what_was_set(make_broker: MakeBroker) -> None:
    store = {"durability": Durability.SYNC, "delay_levels": DelayLevels("90s 2d"), "max_message_size_bytes": 77}
    broker = make_broker(store, broker_name="b2", auto_create_topic=False, idle_timeout_s=0.5, region="R")
    told = settings(Peer(broker))
    expected = {
        "brokerName": "b2",
        "autoCreateTopicEnable": "false",
        "regionId": "R",
        "flushDiskType": "SYNC_FLUSH",
        "maxMessageSize": "77",
        "messageDelayLevel": "90s 2d",
        "serverChannelMaxIdleTimeSeconds": "0.5",
    }
    assert {name: told[name] for name in expected} == expected


def test_the_settings_have_the_version_of_the_start(peer: Peer) -> None:
    response = peer.get(RequestCode.GET_BROKER_CONFIG)
    version = orjson.loads(response.ext_fields["version"])
    assert version == {"counter": 0, "timestamp": peer.broker.statistics.start_ms}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        (" leading", "\\ leading"),
        ("C:\\store", "C:\\\\store"),
        ("two\nlines\r\t", "two\\nlines\\r\\t"),
        ("ü", "\\u00FC"),
        ("\N{GRINNING FACE}", "\\uD83D\\uDE00"),
        ("a=b:c#d!", "a=b:c#d!"),
        ("\udcff", "\\uDCFF"),
        ("\x00", "\\u0000"),
    ],
)
def test_values_are_escaped_as_java_reads_them(value: str, text: str) -> None:
    assert properties_text({"key": value}) == f"key={text}\n"


def test_lines_are_sorted_and_each_ends() -> None:
    assert properties_text({"b": "2", "a": "1"}) == "a=1\nb=2\n"
