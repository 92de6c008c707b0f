"""An end of the log that is set aside: both stores are whole, whatever interrupts the cut."""

import json
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.unit.storage.making import FaultyFileSystem, StoreMaker, matches, put
from triomq.protocol.errors import StoreFullError, StoreLayoutError, StoreLockedError
from triomq.protocol.record.properties import encode_properties
from triomq.protocol.record.record import decode_record
from triomq.storage.aside import set_aside, tails_aside
from triomq.storage.commit_log.log_scan import DamagedPart
from triomq.storage.message_store import MessageStore
from triomq.storage.tools.stopped_store import StoppedStore
from triomq.storage.tools.store_check import check

SIZES: Final = (1, 40, 700, 3000, 9000)
FILE: Final = 16 * 1024


def fill(store: MessageStore, count: int, random: Random) -> list[int]:
    """Store messages in some queues, with keys; return where they begin."""
    return [
        put(
            store,
            random.choice("TU"),
            random.randrange(3),
            random.randbytes(random.choice(SIZES)),
            properties=encode_properties({"KEYS": f"key{random.randrange(9)}"}),
        ).physical_offset
        for _ in range(count)
    ]


def messages(root: Path) -> dict[int, tuple[str, int, int, bytes]]:
    """All messages of a closed store by their places; it must be sound."""
    with StoppedStore(root) as store:
        assert check(store).problems == []
        found: dict[int, tuple[str, int, int, bytes]] = {}
        for each in store.walk():
            assert not isinstance(each, DamagedPart)
            record = store.log.look_message(each[0])
            assert record is not None
            message = decode_record(record)
            if message.topic != "-":
                found[each[0]] = message.topic, message.queue_id, message.queue_offset, message.body
        return found


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("is_clean", [True, False])
def test_cut_store_and_its_end_are_whole(maker: StoreMaker, seed: int, is_clean: bool) -> None:
    random = Random(seed)
    store = maker(commit_log_file_size_bytes=FILE)
    places = fill(store, random.randint(2, 120), random)
    end, begin = store.commit_log.max_offset, random.choice(places[1:])
    root = store.config.root
    if not is_clean:
        store.flush()
        root = maker.killed_copy(store)
    store.close()
    everything = messages(store.config.root)
    config = maker.describe(root, commit_log_file_size_bytes=FILE).config
    set_aside(config, begin, end)
    cut = maker(root, commit_log_file_size_bytes=FILE)
    assert cut.was_cut
    begin_of_cut = cut.commit_log.max_offset
    assert begin_of_cut <= begin
    found = [offset for number in range(9) for topic in "TU" for offset in matches(cut, topic, f"key{number}").offsets]
    assert all(offset < begin for offset in found)
    fill(cut, 5, random)
    cut.close()
    assert not maker(root, commit_log_file_size_bytes=FILE).was_cut
    maker.close()
    (name,) = tails_aside(root)
    assert name == f"{begin}-{end}"
    tail = messages(root / "aside" / name)
    assert tail == {place: row for place, row in everything.items() if place >= begin}
    left = {place: row for place, row in messages(root).items() if place < begin_of_cut}
    assert left == {place: row for place, row in everything.items() if place < begin}


@pytest.mark.parametrize("call", ["create_file", "reserve", "write_file"])
def test_full_disk_leaves_the_store_unchanged(maker: StoreMaker, faulty: FaultyFileSystem, call: str) -> None:
    store = maker(commit_log_file_size_bytes=FILE)
    places = fill(store, 20, Random(3))
    end = store.commit_log.max_offset
    store.close()
    everything = messages(store.config.root)
    faulty.fails = lambda _number, name, _path: name == call
    with pytest.raises(StoreFullError):
        set_aside(store.config, places[7], end, faulty)
    store.open()
    assert (store.was_cut, tails_aside(store.config.root)) == (False, [])
    store.close()
    assert messages(store.config.root) == everything
    set_aside(store.config, places[7], end)
    store.open()
    assert tails_aside(store.config.root) == [f"{places[7]}-{end}"]


def test_ends_of_one_name_are_both_kept(maker: StoreMaker) -> None:
    put(store := maker())
    begin = end = store.commit_log.max_offset
    for _ in range(2):
        put(store)
        end = store.commit_log.max_offset
        store.close()
        set_aside(store.config, begin, end)
        store.open()
    assert tails_aside(store.config.root) == [f"{begin}-{end}", f"{begin}-{end}-2"]


def test_open_store_is_not_cut(maker: StoreMaker) -> None:
    store = maker()
    put(store)
    with pytest.raises(StoreLockedError):
        set_aside(store.config, 100, 200)
    assert tails_aside(store.config.root) == []


def test_unreadable_decision_stops_the_start(maker: StoreMaker) -> None:
    store = maker.describe()
    pending = store.config.root / "aside" / "pending"
    pending.parent.mkdir(parents=True)
    pending.write_text(json.dumps({"from": 1}))
    with pytest.raises(StoreLayoutError, match="pending"):
        store.open()
