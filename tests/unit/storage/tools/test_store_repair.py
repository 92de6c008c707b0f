"""A repair does what its plan says, and nothing else; afterwards the store is sound."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.storage.making import (
    StoreMaker,
    bodies,
    deleted_by_apache,
    filled,
    log_file,
    overwrite,
    put,
    queue_file,
)
from tests.unit.storage.tools.test_stopped_store import state
from triomq.protocol.codes import MessageSysFlag
from triomq.protocol.errors import StoreFullError
from triomq.storage.files.file_system import FileSystem, OpenFile
from triomq.storage.files.json_table import JsonTable
from triomq.storage.tools.stopped_store import StoppedStore, StoredOffset
from triomq.storage.tools.store_check import check
from triomq.storage.tools.store_repair import RepairPlan, RepairReport, plan_repair, repair

Unpack = Callable[[str], Path]


def planned(root: Path) -> RepairPlan:
    with StoppedStore(root) as store:
        return plan_repair(store, check(store))


def repaired(root: Path) -> RepairReport:
    with StoppedStore(root, writable=True) as store:
        return repair(store, plan_repair(store, check(store)))


def problems(root: Path) -> list[str]:
    with StoppedStore(root) as store:
        return [problem.text for problem in check(store).problems]


@pytest.mark.parametrize("name", ["store-crash", "store-powerloss", "store-trimmed"])
def test_apaches_damaged_stores_are_sound_afterwards(unpack: Unpack, name: str) -> None:
    root = unpack(name)
    assert not planned(root).is_empty
    repaired(root)
    assert problems(root) == []
    assert planned(root).is_empty


def test_a_plan_changes_nothing(unpack: Unpack) -> None:
    root = unpack("store-powerloss")
    before = state(root)
    plan = planned(root)
    assert (plan.cut_at, plan.cut_bytes) == (264202, 100)
    assert plan.queues == ("FixtureTopic:0", "FixtureTopic:1", "FixtureTopic:2", "FixtureTopic:3")
    assert state(root) == before


def test_lost_queues_are_built_again_byte_for_byte(maker: StoreMaker) -> None:
    store = filled(maker)
    wanted = bodies(store)
    store.close()
    root = store.config.root
    files = sorted((root / "consumequeue/T/0").iterdir())
    before = [path.read_bytes() for path in files]
    for path in files:
        path.unlink()
    assert planned(root).queues == ("T:0",)
    assert repaired(root) == RepairReport(units_built=100, records_ignored=0)
    assert [path.read_bytes() for path in files] == before
    assert bodies(maker()) == wanted


class FullDisk(FileSystem):
    """Has no room for a file that is made anew."""

    def reserve(self, file: OpenFile, start: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_interrupted_repair_hides_nothing_and_reuses_no_offset(maker: StoreMaker) -> None:
    store = filled(maker)
    wanted = bodies(store)
    put(store, topic="other")  # the last record, with which a start after a clean exit begins
    store.close()
    root = store.config.root
    overwrite(queue_file(root, "T", 0), 20, bytes(20))
    stopped = StoppedStore(root, writable=True)
    stopped.file_system = FullDisk()
    with stopped, pytest.raises(StoreFullError):
        repair(stopped, plan_repair(stopped, check(stopped)))
    again = maker()
    assert bodies(again) == wanted
    put(again, body=b"next")
    assert bodies(again) == [*wanted, b"next"]
    again.close()
    overwrite(queue_file(root, "T", 0), 20, bytes(20))
    assert repaired(root).units_built == len(wanted) + 1
    assert not (root / "abort").exists()
    assert any((root / "checkpoint").read_bytes())


def test_rebuilt_queue_excludes_topic_deleted_by_apache(maker: StoreMaker) -> None:
    root = deleted_by_apache(maker, "T")
    assert planned(root).is_empty
    overwrite(queue_file(root, "T", 0), 20, bytes(20))
    assert planned(root).queues == ("T:0",)
    assert repaired(root) == RepairReport(units_built=3, records_ignored=0)
    assert problems(root) == []
    assert bodies(maker(root)) == [b"new 0", b"new 1", b"new 2"]


def test_a_sound_store_is_left_as_it_is(maker: StoreMaker) -> None:
    store = filled(maker)
    store.close()
    before = state(store.config.root)
    assert planned(store.config.root).is_empty
    assert repaired(store.config.root) == RepairReport(units_built=0, records_ignored=0)
    assert state(store.config.root) == before


def test_loss_in_the_middle_keeps_other_queue_offsets(maker: StoreMaker) -> None:
    store = filled(maker)
    unit = store.reader.queue_units("T", 0, 5, 1)[0]
    damaged = bytes(store.reader.look_message(unit.physical_offset) or b"")
    store.close()
    root = store.config.root
    overwrite(log_file(root, 0), unit.physical_offset, b"\x7f")  # a length that cannot be
    plan = planned(root)
    assert not (root / "quarantine").exists()
    assert [loss.offset for loss in plan.losses] == [unit.physical_offset]
    assert plan.queues == ("T:0",)
    assert repaired(root).units_built == 99
    assert problems(root) == []
    (kept,) = (root / "quarantine").iterdir()
    assert kept.read_bytes() == b"\x7f" + damaged[1:]
    with StoppedStore(root) as stopped:
        queue = stopped.queues.get("T", 0)
        assert (queue.min_offset, queue.max_offset) == (0, 100)
    again = maker()
    assert len(bodies(again)) == 99
    put(again, body=b"next")
    assert bodies(again)[-1] == b"next"


def test_a_store_with_damaged_bodies_is_sound_afterwards(maker: StoreMaker) -> None:
    store = filled(maker)
    units = [store.reader.queue_units("T", 0, number, 1)[0] for number in (5, 6, 99)]
    store.close()
    root = store.config.root
    for unit in units:
        overwrite(log_file(root, unit.physical_offset // 65536 * 65536), unit.physical_offset % 65536 + 100, b"\xff")
    table = JsonTable(root / "config" / "consumerOffset.json")
    table.save({"offsetTable": {"T@G": {"0": 100}}})
    assert not planned(root).is_empty
    assert repaired(root) == RepairReport(units_built=0, records_ignored=0, offsets_set=1)
    assert problems(root) == []
    assert len(list((root / "quarantine").iterdir())) == 3
    again = maker()
    assert (len(bodies(again)), again.reader.max_offset_in_queue("T", 0)) == (97, 99)


def test_no_loss_is_too_long_for_the_messages_behind_it(maker: StoreMaker) -> None:
    store = maker()
    for number in range(1500):
        put(store, body=b"%d" % number)
    lost = sum(unit.physical_offset // 65536 == 1 for unit in store.reader.queue_units("T", 0, 0, 1500))
    assert lost > 10 * 50, "of which a file of the queue has 50"
    store.close()
    root = store.config.root
    overwrite(log_file(root, 65536), 0, bytes(65536))
    assert planned(root).queues == ("T:0",)
    assert repaired(root) == RepairReport(units_built=1500 - lost, records_ignored=0)
    again = maker()
    assert len(bodies(again)) == 1500 - lost
    put(again, body=b"next")
    assert bodies(again)[-2:] == [b"1499", b"next"]


@pytest.mark.parametrize(("position", "content"), [(88 + 1000 + 1, b"\x14"), (12, b"\x80")], ids=["topic", "queue id"])
def test_record_of_impossible_queue_counts_as_lost_only(maker: StoreMaker, position: int, content: bytes) -> None:
    store = filled(maker)
    unit = store.reader.queue_units("T", 0, 5, 1)[0]
    store.close()
    root = store.config.root
    overwrite(log_file(root, 0), unit.physical_offset + position, content)
    plan = planned(root)
    assert [(loss.offset, loss.size_bytes) for loss in plan.losses] == [(unit.physical_offset, unit.size)]
    assert plan.queues == ("T:0",)
    assert repaired(root).units_built == 99
    assert problems(root) == [plan.losses[0].text]
    assert len(bodies(maker())) == 99


def test_a_queue_may_begin_in_the_middle(maker: StoreMaker) -> None:
    store = filled(maker)
    store.close()
    root = store.config.root
    log_file(root, 0).unlink()
    expected = [path.read_bytes() for path in sorted((root / "consumequeue/T/0").iterdir())][-1]
    with StoppedStore(root) as stopped:
        first = stopped.queues.get("T", 0).min_offset
    overwrite(queue_file(root, "T", 0), first * 20 + 8, b"\x01")
    repaired(root)
    assert problems(root) == []
    assert [path.read_bytes() for path in sorted((root / "consumequeue/T/0").iterdir())][-1] == expected


def test_a_torn_end_is_cleared_and_later_files_go(maker: StoreMaker) -> None:
    store = filled(maker, 100)
    store.close()
    root = store.config.root
    end = store_end(root)
    last = log_file(root, end // 65536 * 65536)
    overwrite(last, end % 65536, b"torn")
    log_file(root, int(last.name) + 65536).write_bytes(bytes(65536))
    plan = planned(root)
    assert (plan.cut_at, plan.cut_bytes) == (end, 4)
    repaired(root)
    assert problems(root) == []
    assert not any(last.read_bytes()[end % 65536 :])
    assert not log_file(root, int(last.name) + 65536).exists()


def test_unit_of_damaged_last_record_is_cut_and_offsets_follow(maker: StoreMaker) -> None:
    store = filled(maker, 20)
    unit = store.reader.queue_units("U", 0, 9, 1)[0]
    store.close()
    root = store.config.root
    overwrite(log_file(root, 0), unit.physical_offset + 500, b"?")  # in its body
    table = root / "config" / "consumerOffset.json"
    table.parent.mkdir()
    table.write_text('{"offsetTable":{"U@G":{0:10}}}')
    assert "U:0" in planned(root).queues
    assert repaired(root) == RepairReport(units_built=9, records_ignored=0, offsets_set=1)
    assert problems(root) == []
    with StoppedStore(root) as stopped:
        assert stopped.stored_offsets() == [StoredOffset("G", "U", 0, 9)]


def store_end(root: Path) -> int:
    with StoppedStore(root) as store:
        return check(store).log_end


def test_offsets_ahead_of_their_queue_are_set_back(maker: StoreMaker) -> None:
    store = filled(maker, 20)
    store.close()
    path = store.config.root / "config" / "consumerOffset.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"offsetTable":{"T@G":{0:5},"T@Ahead":{0:11},"None@G":{2:1}}}')
    plan = planned(store.config.root)
    assert plan.offsets == (StoredOffset("Ahead", "T", 0, 10), StoredOffset("G", "None", 2, 0))
    repaired(store.config.root)
    with StoppedStore(store.config.root) as stopped:
        assert {tuple(stored) for stored in stopped.stored_offsets()} == {
            ("G", "T", 0, 5), ("Ahead", "T", 0, 10), ("G", "None", 2, 0),
        }  # fmt: skip


def test_unitless_records_and_deleted_topics_stay_hidden(maker: StoreMaker) -> None:
    store = filled(maker, 20)
    store.delete_topic("T")
    put(store, "T", body=b"again")
    put(store, "T", body=b"prepared", sys_flag=int(MessageSysFlag.TRANSACTION_PREPARED))
    store.close()
    root = store.config.root
    queue_file(root, "T", 0).unlink()
    assert repaired(root).units_built == 1
    assert bodies(maker()) == [b"again"]


def test_a_number_that_cannot_be_is_ignored(maker: StoreMaker) -> None:
    store = filled(maker, 20)
    unit = store.reader.queue_units("T", 0, 5, 1)[0]
    store.close()
    root = store.config.root
    overwrite(log_file(root, 0), unit.physical_offset + 20, (10**9).to_bytes(8))  # its queue offset
    assert repaired(root) == RepairReport(units_built=9, records_ignored=1)


def test_flipped_bit_in_first_queue_offset_costs_no_other(maker: StoreMaker) -> None:
    store = filled(maker, 20)
    unit = store.reader.queue_units("T", 0, 0, 1)[0]
    store.close()
    root = store.config.root
    overwrite(log_file(root, 0), unit.physical_offset + 20, (4).to_bytes(8))
    assert repaired(root) == RepairReport(units_built=9, records_ignored=1)


def test_index_is_truncated_at_first_bad_file_and_rebuilt(maker: StoreMaker) -> None:
    store = maker()
    for number in range(400):
        put(store, properties=f"KEYS\x01a{number}".encode())
    store.close()
    root = store.config.root
    paths = sorted((root / "index").iterdir())
    before = [path.read_bytes() for path in paths]
    overwrite(paths[1], 40 + 50 * 4 + 20 * 20, b"\x7f")
    assert planned(root).index_files == tuple(path.name for path in paths[1:])
    repaired(root)
    assert sorted((root / "index").iterdir()) == paths[:1]
    maker().close()
    assert [path.read_bytes()[:40] for path in sorted((root / "index").iterdir())] == [text[:40] for text in before]
    assert problems(root) == []
