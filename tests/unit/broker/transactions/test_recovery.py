"""Which transactions a start finds; ``tests.powercut`` cuts the power anywhere."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.unit.broker.recording import MakeBroker, Peer
from triomq.broker.config import BrokerConfig
from triomq.broker.groups.tables import ConsumerOffsetTable
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.broker.transactions.undecided import Decision, Undecided
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.host import encode_host
from triomq.protocol.names import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from triomq.protocol.record.message import MessageExt
from triomq.storage.append import entry
from triomq.storage.config import StoreConfig
from triomq.storage.files.json_table import JsonTable
from triomq.storage.message_store import MessageStore

ROLLBACK = 12
HOST = encode_host("127.0.0.1", 10911)


class Opened:
    """A store with its transactions."""

    def __init__(self, root: Path) -> None:
        self.config = StoreConfig(root=root, commit_log_file_size_bytes=4096, index=False)
        self.store = MessageStore(self.config, clock_ms=lambda: 1_800_000_000_000)
        self.store.open()
        self.offsets = ConsumerOffsetTable(JsonTable(root / "config" / "consumerOffset.json"), clock_ms=lambda: 0)
        self.offsets.load()
        self.undecided = Undecided(
            self.store, self.offsets, BrokerStatistics(0), BrokerConfig(store=self.config), lambda: 0
        )
        self.undecided.load()

    def put(self, unique_key: bytes = b"id") -> MessageExt:
        properties = b"TRAN_MSG\x01true\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02UNIQ_KEY\x01" + unique_key
        message = entry(self.store.queue("T", 0), b"body", properties, born_host=HOST, store_host=HOST)
        return self.read(self.undecided.put(message)[1])

    def read(self, queue_offset: int) -> MessageExt:
        half = self.undecided.read(queue_offset)
        assert half is not None
        return half

    def restart(self) -> "Opened":
        for _ in range(2):
            self.undecided.save_offsets()
            self.store.flush()
        self.offsets.write(list(self.offsets.pieces()))
        self.store.close()
        return Opened(self.config.root)

    def cut_power(self, lost_offset: int, lost_bytes: int) -> "Opened":
        """Return the store that a power cut leaves, without a part of the log."""
        crashed = self.config.root.with_name(f"{self.config.root.name}-crashed")
        shutil.copytree(self.config.root, crashed)
        self.store.close()
        with (crashed / "commitlog" / f"{0:020d}").open("r+b") as log:
            log.seek(lost_offset)
            log.write(bytes(lost_bytes))
        return Opened(crashed)


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    return Opened(tmp_path / "store")


def test_rollback_of_lost_half_message_settles_no_other(opened: Opened) -> None:
    """Power cuts lose a half message, but not its operation message, and that of a copy that gets its queue offset."""
    half = opened.put()
    lost = opened.put(b"lost")
    opened.undecided.decide(Decision(lost, lost.queue_offset, ROLLBACK, None))
    with (opened.config.root / "consumequeue" / HALF_TOPIC / "0" / f"{0:020d}").open("r+b") as units:
        units.seek(20 * lost.queue_offset)
        units.write(bytes(20))
    again = opened.cut_power(lost.physical_offset, lost.store_size)
    assert again.undecided.copy(half, 1)[1] == lost.queue_offset
    moved = again.store.queue(OP_HALF_TOPIC, 0).unit(1)
    assert moved is not None
    again = again.cut_power(moved.physical_offset, moved.size)
    assert again.undecided.find(half) == lost.queue_offset


def test_resumed_transaction_is_found_by_all_half_messages(opened: Opened) -> None:
    half = opened.put()
    opened.undecided.give_up(half)
    place = opened.undecided.copy(half, 0)
    opened = opened.restart()
    assert opened.undecided.find(half) == place[1]
    place = opened.undecided.copy(opened.read(place[1]), 1)
    opened = opened.restart()
    assert opened.undecided.find(half) == place[1]


def test_future_half_message_is_checked_like_new(tmp_path: Path) -> None:
    opened = Opened(tmp_path)  # its messages are of 2027, its time is that of 1970
    opened.put()
    again = opened.restart()
    assert again.undecided.next_due_ms() == BrokerConfig(store=again.config).transaction_timeout_ms
    again.store.close()


@pytest.mark.parametrize(
    ("code", "fields", "answer"),
    [
        (RequestCode.UPDATE_CONSUMER_OFFSET, {"commitOffset": 10**9}, ResponseCode.NO_PERMISSION),
        (RequestCode.PULL_MESSAGE, {"commitOffset": 10**9, "sysFlag": 5}, ResponseCode.SUCCESS),
        (RequestCode.CLONE_GROUP_OFFSET, {"destGroup": TRANSACTION_GROUP}, ResponseCode.NO_PERMISSION),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": TRANSACTION_GROUP}, ResponseCode.NO_PERMISSION),
        (
            RequestCode.DELETE_SUBSCRIPTIONGROUP,
            {"groupName": TRANSACTION_GROUP, "cleanOffset": "true"},
            ResponseCode.NO_PERMISSION,
        ),
    ],
)
def test_client_cannot_move_offsets_of_transactions(
    make_broker: MakeBroker, code: int, fields: dict[str, Any], answer: int
) -> None:
    peer = Peer(make_broker())
    peer.put("T", i="TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01id")
    offsets, settings = peer.broker.groups.offsets, peer.broker.groups.settings
    assert settings.get_or_create(TRANSACTION_GROUP) is not None
    offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, 0)
    offsets.commit("G", HALF_TOPIC, 0, 10**9)
    common = {
        "topic": HALF_TOPIC, "consumerGroup": TRANSACTION_GROUP, "srcGroup": "G", "offline": "true", "queueId": 0,
        "queueOffset": 0, "maxMsgNums": 1, "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*",
    }  # fmt: skip
    assert peer.get(code, {**common, **fields}).code == answer
    assert settings.get(TRANSACTION_GROUP) is not None
    assert offsets.query(TRANSACTION_GROUP, HALF_TOPIC, 0) == 0
    peer.broker.save_tables()
    assert len(make_broker().transactions.undecided) == 1
