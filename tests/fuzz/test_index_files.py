"""Damaged index files, by seed: searching and going on never fail, and find nothing that is no message."""

import shutil
from pathlib import Path
from random import Random

from tests.unit.storage.making import StoreMaker, matches, put
from triomq.protocol.record.properties import encode_properties
from triomq.storage.message_store import MessageStore

SEEDS = 100
COUNT = 400
KEYS = tuple(f"key-{number}" for number in range(0, COUNT, 7))


def put_some(maker: StoreMaker, store: MessageStore, numbers: range) -> None:
    for number in numbers:
        maker.clock.now_ms += 1000
        put(store, properties=encode_properties({"KEYS": f"key-{number} all", "UNIQ_KEY": f"{number:032X}"}))


def damage(root: Path, random: Random) -> str:
    path = random.choice(sorted((root / "index").iterdir()))
    content = bytearray(path.read_bytes())
    at = random.choice((random.randrange(40), random.randrange(240), random.randrange(len(content))))
    kind = random.choice(("flip", "flip", "noise", "zero", "cut", "remove", "longer"))
    if kind == "flip":
        content[at] ^= 1 << random.randrange(8)
    elif kind in {"zero", "noise"}:
        length = min(random.choice((1, 4, 20, 512)), len(content) - at)
        content[at : at + length] = bytes(length) if kind == "zero" else random.randbytes(length)
    elif kind == "cut":
        del content[at:]
    elif kind == "longer":
        content += bytes(20)
    path.unlink() if kind == "remove" else path.write_bytes(content)
    return f"{kind} {path.name} at {at}"


def test_damaged_index_neither_stops_store_nor_invents_messages(maker: StoreMaker) -> None:
    store = maker()
    put_some(maker, store, range(COUNT))
    store.close()
    places = {unit.physical_offset for unit in maker().reader.queue_units("T", 0, 0, COUNT)}
    maker.close()
    complete = 0
    for seed in range(SEEDS):
        random = Random(seed)
        root = maker.root / f"seed-{seed}"
        shutil.copytree(store.config.root, root)
        done = [damage(root, random) for _ in range(random.choice((1, 1, 3)))]
        try:
            damaged = maker(root)
            found = [matches(damaged, "T", key).offsets for key in KEYS]
            assert {offset for offsets in found for offset in offsets} <= places
            put_some(maker, damaged, range(COUNT, COUNT + 5))
            assert len(matches(damaged, "T", f"key-{COUNT + 4}").offsets) == 1
            damaged.close()
            assert maker(root).recovery is not None
        except Exception as exc:
            raise AssertionError(f"seed {seed}: {done}") from exc
        complete += all(len(offsets) == 1 for offsets in found)
        maker.close()
        shutil.rmtree(root)
    assert complete > SEEDS // 2  # most damage is noticed and made good, or touches none of these keys
