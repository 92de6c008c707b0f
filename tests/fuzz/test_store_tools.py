"""``triomq store`` on damaged stores, by seed: it writes nothing, and a rebuilt store is sound."""

import shutil
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.test_store_files import damage, is_part_of, original
from tests.unit.storage.making import StoreMaker, bodies
from tests.unit.storage.tools.test_stopped_store import state
from tests.unit.storage.tools.test_store_check import checked, rebuild
from triomq.protocol.errors import StoreError
from triomq.protocol.record.record import decode_record
from triomq.storage.commit_log.log_scan import DamagedPart
from triomq.storage.tools.stopped_store import StoppedStore
from triomq.storage.tools.store_check import ProblemKind, check

SEEDS = range(1000, 1080)
Bodies = dict[str, list[bytes]]


def dumped(root: Path) -> Bodies:
    """What ``dump`` writes of each topic, after a check."""
    found: Bodies = {}
    with StoppedStore(root) as store:
        check(store)
        for place in store.walk():
            if not isinstance(place, DamagedPart):
                record = store.log.look_message(place[0])
                assert record is not None
                message = decode_record(record)
                found.setdefault(message.topic, []).append(message.stored_body)
    return found


def use_tools(maker: StoreMaker, root: Path, wanted: Bodies) -> bool:
    """Read, rebuild and open a damaged store; ``False`` if the tools refuse it."""
    before = state(root)
    found, refusal = None, ""
    try:
        found = dumped(root)
    except StoreError as exc:
        refusal = str(exc)
    assert state(root) == before
    if found is None:
        assert str(root) in refusal  # it names the rejected file
        return False
    assert all(is_part_of(found.get(topic, []), wanted[topic]) for topic in wanted)
    rebuild(root, checked(root))
    store = maker(root)
    assert {topic: bodies(store, topic) for topic in wanted} == {topic: found.get(topic, []) for topic in wanted}
    store.close()
    assert {problem.kind for problem in checked(root).problems} <= {ProblemKind.OFFSET}
    return True


@pytest.mark.parametrize("clean", [True, False])
def test_store_tools_survive_damage_and_invent_no_messages(maker: StoreMaker, clean: bool) -> None:
    source, wanted = original(maker, clean=clean)
    used = 0
    for seed in SEEDS:
        random = Random(seed)
        root = maker.root / f"seed-{seed}"
        shutil.copytree(source, root)
        done = [damage(root, random) for _ in range(random.choice((1, 1, 2, 5)))]
        try:
            used += use_tools(maker, root, wanted)
        except Exception as exc:
            raise AssertionError(f"seed {seed}: {done}") from exc
        shutil.rmtree(root)
    assert used > len(SEEDS) // 3
