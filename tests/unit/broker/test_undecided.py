"""What a start finds of transactions; ``tests.powercut`` cuts the power anywhere."""

import shutil
from pathlib import Path

import pytest

from triomq.broker.config import BrokerConfig
from triomq.broker.delayed.delivery import real_queue
from triomq.broker.groups.consumer_offsets import ConsumerOffsetTable
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.broker.transactions.undecided import Decision, Undecided
from triomq.protocol.host import encode_host
from triomq.protocol.names import CHECK_MAX_TOPIC
from triomq.protocol.record.message import MessageExt
from triomq.storage.append import entry
from triomq.storage.config import StoreConfig
from triomq.storage.files.json_table import JsonTable
from triomq.storage.message_store import MessageStore

COMMIT = 8
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

    def put(self) -> MessageExt:
        properties = b"TRAN_MSG\x01true\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02UNIQ_KEY\x01id"
        message = entry(self.store.queue("T", 0), b"body", properties, born_host=HOST, store_host=HOST)
        return self.read(self.undecided.put(message)[1])

    def read(self, queue_offset: int) -> MessageExt:
        half = self.undecided.read(queue_offset)
        assert half is not None
        return half

    def commit(self, half: MessageExt) -> None:
        live = self.undecided.find(half)
        assert live is not None
        self.undecided.decide(Decision(half, live, COMMIT, real_queue(self.store, half.encoded_properties)))

    def restart(self) -> "Opened":
        for _ in range(2):
            self.undecided.save_offsets()
            self.store.flush()
        self.offsets.write(self.offsets.encode())
        self.store.close()
        return Opened(self.config.root)

    def count(self) -> int:
        return self.store.reader.max_offset_in_queue("T", 0)


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    return Opened(tmp_path / "store")


@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_decision_whose_message_was_torn_off_is_none(opened: Opened, tmp_path: Path, *, is_given_up: bool) -> None:
    half = opened.put()
    opened.store.flush()
    begin = opened.store.commit_log.max_offset
    if is_given_up:
        opened.undecided.give_up(half)
    else:
        opened.commit(half)
    queue = opened.store.queue(CHECK_MAX_TOPIC if is_given_up else "T", 0)
    unit = queue.unit(0)
    assert unit is not None
    assert unit.physical_offset == begin
    crashed = tmp_path / "crashed"
    shutil.copytree(opened.config.root, crashed)
    opened.store.close()
    with (crashed / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(begin)
        log.write(bytes(unit.size))
    again = Opened(crashed)
    for _ in range(2):
        assert len(again.undecided) == 1
        again = again.restart()
    assert again.undecided.find(half) is not None
    again.commit(half)
    again = again.restart()
    assert (len(again.undecided), again.count()) == (0, 1)


def test_a_resumed_transaction_stays_undecided_and_is_found_by_all_its_half_messages(opened: Opened) -> None:
    half = opened.put()
    opened.undecided.give_up(half)
    place = opened.undecided.copy(half, 0)
    opened = opened.restart()
    assert opened.undecided.find(half) == place[1]
    place = opened.undecided.copy(opened.read(place[1]), 1)
    opened = opened.restart()
    assert opened.undecided.find(half) == place[1]


def test_half_message_of_the_future_is_checked_no_later_than_one_of_now(tmp_path: Path) -> None:
    opened = Opened(tmp_path)  # its messages are of 2027, its time is that of 1970
    opened.put()
    again = opened.restart()
    assert again.undecided.next_due_ms() == BrokerConfig(store=again.config).transaction_timeout_ms
    again.store.close()
