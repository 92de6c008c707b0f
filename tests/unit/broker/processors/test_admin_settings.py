"""Settings as Java properties text."""

from pathlib import Path

import orjson
import pytest

from tests.unit.broker.recording import Clock, MakeBroker, Peer
from triomq.broker import Address
from triomq.common.broker_settings import SETTINGS, Setting
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.config import Durability
from triomq.storage.delays import DelayLevels


def settings(peer: Peer) -> dict[str, str]:
    lines = bytes(peer.get(RequestCode.GET_BROKER_CONFIG).body).decode("ascii").splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_settings_have_rocketmqs_names_and_notation(make_broker: MakeBroker, tmp_path: Path) -> None:
    store = {"durability": Durability.SYNC, "delay_levels": DelayLevels("90s 2d 60m"), "max_message_size_bytes": 77}
    role = {"role": "slave", "broker_id": 3, "ha_master": Address("192.0.2.9", 10912), "slave_read_ratio": 0}
    broker = make_broker(store, broker_name="b2", auto_create_topic=False, idle_timeout_s=0.5, **role)
    found = settings(Peer(broker))
    expected = {
        "brokerName": "b2", "brokerId": "3", "brokerIP1": "192.0.2.1", "listenPort": "10911", "aclEnable": "false",
        "autoCreateTopicEnable": "false", "storePathRootDir": str(tmp_path / "store"), "maxMessageSize": "77",
        "brokerRole": "SLAVE", "slaveReadEnable": "true", "slaveTimeout": "3000",
        "flushDiskType": "SYNC_FLUSH", "flushIntervalCommitLog": "500", "fileReservedTime": "72", "deleteWhen": "04",
        "serverChannelMaxIdleTimeSeconds": "0.5", "messageDelayLevel": "90s 2d 1h",
    }  # fmt: skip
    assert {name: found.get(name) for name in expected} == expected
    assert found.keys() >= {row.name for row in SETTINGS if row.name and row.kind.is_reported}
    assert not found.keys() & {"namesrvAddr", "tls.server.keyPath"}


def change(peer: Peer, text: str) -> RemotingCommand:
    return peer.get(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())


@pytest.mark.parametrize("row", [row for row in SETTINGS if row.is_live], ids=lambda row: row.name)
def test_a_live_setting_is_changed_and_reported(peer: Peer, row: Setting) -> None:
    def version() -> dict[str, int]:
        answer = peer.get(RequestCode.GET_BROKER_CONFIG)
        return dict(orjson.loads(answer.ext_fields["version"]))

    assert version() == {"counter": 0, "timestamp": peer.broker.statistics.start_ms}
    before = settings(peer)[row.name]
    text = {"true": "false", "false": "true", "04": "04;16", "72": "48.5"}.get(before) or str(int(before) + 1)
    assert change(peer, f"{row.name}={text}\n").code == ResponseCode.SUCCESS
    assert settings(peer)[row.name] == text
    assert version()["counter"] == 1


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("storePathRootDir=/tmp", "storePathRootDir cannot be changed while the broker runs"),
        ("brokerIP1=192.0.2.2", "brokerIP1 cannot be changed"),
        ("haListenPort=1", "haListenPort cannot be changed"),
        ("brokerRole=SYNC_MASTER", "brokerRole cannot be changed"),
        ("haTransferBatchSize=1", "'haTransferBatchSize' does not exist in triomq"),
        ("slaveTimeout=0", "slave_timeout_s must be above 0"),
        ("rocketmqHome=/; id", "'rocketmqHome' does not exist in triomq"),
        ("transactionCheckMax=0", "transaction_check_max must be above 0"),
        ("transactionCheckMax=x", "'x' is not a number"),
        ("transactionCheckMax=1.5", "'1.5' is not a whole number"),
        ("deleteWhen=24", "delete_when holds 24"),
        ("deleteWhen=", "'' is not hours"),
        ("cleanFileForciblyEnable=yes", "'yes' is not true or false"),
        ("maxTransferBytesOnMessageInMemory=99999999", "max_transfer_bytes_in_memory is 99999999"),
        ("defaultTopicQueueNums=65537", "default_topic_queues is 65537"),
        ("fileReservedTime=1e9", "'1e9' is not a number"),
    ],
)
def test_a_change_is_refused_as_a_whole(peer: Peer, text: str, remark: str) -> None:
    before = settings(peer)
    response = change(peer, f"diskMaxUsedSpaceRatio=80\n{text}\n")
    is_fixed = "cannot be changed" in remark or "does not exist" in remark
    assert response.code == (ResponseCode.NO_PERMISSION if is_fixed else ResponseCode.SYSTEM_ERROR)
    assert remark in (response.remark or "")
    assert settings(peer) == before


def test_reported_settings_may_be_sent_back(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    answer = peer.get(RequestCode.GET_BROKER_CONFIG)
    text = bytes(answer.body).decode().replace("transactionCheckMax=15", "transactionCheckMax=3")
    assert change(peer, text).code == ResponseCode.SUCCESS
    changes = [record.getMessage() for record in caplog.records if "setting changed" in record.getMessage()]
    assert changes == ["setting changed name=transactionCheckMax from=15 to=3 peer=192.0.2.9:50001"]


def test_changes_have_an_effect_at_once(peer: Peer, clock: Clock) -> None:
    """One of each part that keeps settings."""
    template = {"topic": "TBW102"}
    assert peer.put("T").code == ResponseCode.SUCCESS
    change(peer, "autoCreateTopicEnable=false\nautoCreateSubscriptionGroup=false\ntimerMaxDelaySec=5")
    assert peer.put("U").code == ResponseCode.TOPIC_NOT_EXIST
    assert peer.get(RequestCode.GET_ROUTEINFO_BY_TOPIC, template).code == ResponseCode.TOPIC_NOT_EXIST
    assert peer.broker.groups.settings.get_or_create("G") is None
    assert peer.put("T", i="TIMER_DELAY_MS\x016000").code == ResponseCode.MESSAGE_ILLEGAL
    change(peer, "autoCreateTopicEnable=true\ndefaultTopicQueueNums=2")
    assert peer.put("U").code == ResponseCode.SUCCESS
    created = peer.broker.topics.get("U")
    assert created is not None
    assert created.write_queue_nums == 2
    for ratio in (30, 50):
        change(peer, f"slaveReadEnable=true\naccessMessageInMemoryMaxRatio={ratio}")
        assert peer.broker.config.slave_read_ratio == ratio
        change(peer, "slaveReadEnable=false")
        assert peer.broker.config.slave_read_ratio is None
    change(peer, "transactionTimeOut=60000")
    peer.put("T", i="TRAN_MSG\x01true\x02PGROUP\x01P")
    assert peer.broker.transactions.undecided.next_due_ms() == clock.now_ms + 60_000
