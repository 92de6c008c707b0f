"""Walking over a damaged log: every good record is found, and what is lost is named."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.storage.making import StoreMaker, body, filled, log_file, overwrite, put
from triomq.storage.commit_log.log_walk import Damage, walk
from triomq.storage.tools.stopped_store import StoppedStore


def walked(root: Path, *, check_crc: bool = True) -> tuple[list[int], list[Damage]]:
    with StoppedStore(root) as store:
        found = list(walk(store.log, store.file_system, check_crc=check_crc))
    damage = [entry for entry in found if isinstance(entry, Damage)]
    return [entry[0] for entry in found if not isinstance(entry, Damage)], damage


def closed(maker: StoreMaker, count: int = 200) -> tuple[Path, list[int]]:
    store = filled(maker, count)
    store.close()
    root = store.config.root
    offsets, damage = walked(root)
    assert len(offsets) == count
    assert damage == []
    return root, offsets


def test_a_flipped_bit_costs_its_record_only(maker: StoreMaker) -> None:
    root, offsets = closed(maker)
    overwrite(log_file(root, 0), offsets[7] + 100, b"\xff")
    found, damage = walked(root)
    assert found == offsets[:7] + offsets[8:]
    assert [(entry.offset, entry.end, entry.is_tail) for entry in damage] == [(offsets[7], offsets[8], False)]
    assert "does not match its CRC" in damage[0].reason
    assert walked(root, check_crc=False) == (offsets, [])


def test_wrong_length_or_magic_loses_only_its_record(maker: StoreMaker) -> None:
    root, offsets = closed(maker)
    overwrite(log_file(root, 0), offsets[3], b"\x7f")
    overwrite(log_file(root, 0), offsets[10] + 4, b"\0")
    found, damage = walked(root)
    assert found == [offset for offset in offsets if offset not in (offsets[3], offsets[10])]
    assert [entry.offset for entry in damage] == [offsets[3], offsets[10]]


def test_records_behind_a_lost_end_of_file_are_found(maker: StoreMaker) -> None:
    root, offsets = closed(maker)
    last = max(offset for offset in offsets if offset < 65536)
    overwrite(log_file(root, 0), last, bytes(65536 - last))
    found, damage = walked(root)
    assert found == [offset for offset in offsets if offset != last]
    assert [(entry.offset, entry.end) for entry in damage] == [(last, 65536)]


def test_a_torn_end_is_a_tail(maker: StoreMaker) -> None:
    root, offsets = closed(maker)
    start = offsets[-1] // 65536 * 65536
    overwrite(log_file(root, start), offsets[-1] - start + 4, b"\0\0")
    found, damage = walked(root)
    assert found == offsets[:-1]
    assert [(entry.offset, entry.is_tail) for entry in damage] == [(offsets[-1], True)]
    assert damage[0].end > offsets[-1] + 1000


def test_damage_before_only_blank_file_end_counts_as_tail(maker: StoreMaker) -> None:
    """As a start of the store sees it, which cuts the log there."""
    root, offsets = closed(maker)
    in_first = [offset for offset in offsets if offset < 65536]
    for start in range(65536, offsets[-1] + 1, 65536):
        log_file(root, start).unlink()
    overwrite(log_file(root, 0), in_first[-1] + 4, b"\0")
    found, damage = walked(root)
    assert found == in_first[:-1]
    assert [(entry.offset, entry.is_tail) for entry in damage] == [(in_first[-1], True)]
    log = maker(root).commit_log
    assert log.max_offset == in_first[-1]


def test_a_record_of_another_place_is_none(maker: StoreMaker) -> None:
    root, offsets = closed(maker)
    path = log_file(root, 0)
    content = path.read_bytes()
    overwrite(path, offsets[20], content[offsets[5] : offsets[6]])  # of the same length
    assert [entry.offset for entry in walked(root)[1]] == [offsets[20]]


def test_an_empty_log_has_nothing(maker: StoreMaker) -> None:
    store = maker()
    put(store)
    root = store.config.root
    store.close()
    log_file(root, 0).unlink()
    assert walked(root) == ([], [])


def test_progress_is_told(maker: StoreMaker) -> None:
    store = maker(commit_log_file_size_bytes=64 * 1024**2)
    for number in range(9):
        put(store, body=bytes(4 * 1024**2 - number))
    store.close()
    told: list[tuple[int, int]] = []
    with StoppedStore(store.config.root) as stopped:
        list(walk(stopped.log, stopped.file_system, progress=lambda done, total: told.append((done, total))))
    assert len(told) == 2
    assert told[0][0] >= 16 * 1024**2
    assert told[0][1] == 64 * 1024**2


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_damage_costs_at_most_the_records_it_touches(data: st.DataObject, tmp_path_factory: object) -> None:
    root = _template()
    content = log_file(root, 0).read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    junk = data.draw(st.binary(min_size=1, max_size=300))[: len(content) - at]
    _, offsets = _TEMPLATE[0]
    try:
        overwrite(log_file(root, 0), at, junk)
        found, _ = walked(root)
    finally:
        overwrite(log_file(root, 0), at, content[at : at + len(junk)])
    bounds = [*offsets, offsets[-1] + len(content)]
    touched = {offset for offset, end in zip(offsets, bounds[1:], strict=False) if offset < at + len(junk) and at < end}
    assert set(offsets) - touched <= set(found) <= set(offsets)


_TEMPLATE: list[tuple[Path, list[int]]] = []


def _template() -> Path:
    """One small store for all examples."""
    if not _TEMPLATE:
        import tempfile

        directory = tempfile.TemporaryDirectory(prefix="triomq-walk-")
        _KEEP.append(directory)
        maker = StoreMaker(Path(directory.name))
        store = maker(commit_log_file_size_bytes=16 * 1024)
        for number in range(30):
            put(store, body=body(number)[:300])
        store.close()
        _TEMPLATE.append((store.config.root, walked(store.config.root)[0]))
    return _TEMPLATE[0][0]


_KEEP: list[object] = []
