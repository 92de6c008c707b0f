"""Damaged store directories: every file of it flipped, cut, filled and removed, by seed.

Whatever happens, opening either refuses with an error of ours or gives a store in which every message that can be
read is one that was put, in its queue; a second opening finds nothing more to do.
"""

import shutil
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from tests.unit.storage.making import StoreMaker, bodies, filled
from triomq.broker.groups.tables import ConsumerOffsetTable
from triomq.protocol.errors import StoreError
from triomq.storage.files.json_table import JsonTable

SEEDS = 100
PART = 25


def offsets_of(root: Path) -> ConsumerOffsetTable:
    return ConsumerOffsetTable(JsonTable(root / "config" / "consumerOffset.json"), clock_ms=lambda: 0)


def original(maker: StoreMaker, *, clean: bool) -> tuple[Path, dict[str, list[bytes]]]:
    store = filled(maker, 120)
    store.flush()
    for number in (1, 2):
        table = offsets_of(store.config.root)
        table.commit("g", "T", 0, number)
        table.write(list(table.pieces()))
    wanted = {topic: bodies(store, topic) for topic in ("T", "U")}
    root = store.config.root
    if clean:
        store.close()
    else:
        root = maker.killed_copy(store)
    return root, wanted


def damage(root: Path, random: Random) -> str:
    path = random.choice(sorted(path for path in root.rglob("*") if path.is_file()))
    content = bytearray(path.read_bytes())
    kind = random.choice(("flip", "flip", "zero", "noise", "cut", "remove"))
    at = random.randrange(len(content)) if content else 0
    if kind == "flip" and content:
        content[at] ^= 1 << random.randrange(8)
    elif kind in {"zero", "noise"}:
        length = min(random.choice((1, 20, 512, 4096)), len(content) - at)
        content[at : at + length] = bytes(length) if kind == "zero" else random.randbytes(length)
    elif kind == "cut":
        del content[at:]
    path.unlink() if kind == "remove" else path.write_bytes(content)
    return f"{kind} {path.relative_to(root)} at {at}"


def is_part_of(found: list[bytes], wanted: list[bytes]) -> bool:
    rest = iter(wanted)
    return all(body in rest for body in found)


def check(maker: StoreMaker, root: Path, wanted: dict[str, list[bytes]]) -> None:
    store = maker.describe(root)
    refusal = ""
    try:
        store.open()
    except StoreError as exc:
        refusal = str(exc)
    if refusal:
        assert str(root) in refusal  # it names the rejected file
        return
    found = {topic: bodies(store, topic) for topic in wanted}
    assert all(is_part_of(found[topic], wanted[topic]) for topic in wanted)
    store.close()
    again = maker(root)
    assert again.recovery is not None
    assert not again.recovery.damage
    assert not again.recovery.truncated_bytes
    assert {topic: bodies(again, topic) for topic in wanted} == found
    again.close()
    with suppress(StoreError):  # the tables have no checksum: what can be read is taken
        offsets_of(root).load()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("part", range(SEEDS // PART))
def test_damaged_files_never_give_a_wrong_message(maker: StoreMaker, clean: bool, part: int) -> None:
    source, wanted = original(maker, clean=clean)
    for seed in range(part * PART, part * PART + PART):
        random = Random(seed)
        root = maker.root / f"seed-{seed}"
        shutil.copytree(source, root)
        done = [damage(root, random) for _ in range(random.choice((1, 1, 2, 5)))]
        try:
            check(maker, root, wanted)
        except Exception as exc:
            raise AssertionError(f"seed {seed}: {done}") from exc
        shutil.rmtree(root)


def test_the_check_finds_a_wrong_message(maker: StoreMaker) -> None:
    root, wanted = original(maker, clean=True)
    wanted["T"][3] = b"another"
    with pytest.raises(AssertionError):
        check(maker, root, wanted)
