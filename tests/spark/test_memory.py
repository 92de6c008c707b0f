"""Scenarios 8, 35 and 50, the memory: one task in a separate process, without a JVM."""

from pathlib import Path

import pytest

from tests.backlog import write_backlog
from tests.processes import start_triomq
from tests.spark.harness import Topics, run_program

TASK_S = 150
LARGE_BODIES = 64


def high_water_mb(action: str, namesrv: str, topic: str, count: int) -> float:
    done = run_program("tests.spark.one_task", action, namesrv, topic, str(count), timeout_s=TASK_S)
    assert done.returncode == 0, done.stderr[-3000:]
    return float(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_long_range_needs_no_more_memory(tmp_path: Path) -> None:
    """Scenario 50, with 300,000 messages of 100 bytes instead of 10 million, beside a tenth of them.

    ``python -m bench spark --memory`` reads 10 million.
    """
    write_backlog(tmp_path / "store", "long", queues=1, messages=300_000)
    with start_triomq(tmp_path, "--no-index") as broker:
        short, long = (high_water_mb("read", broker.namesrv, "long", count) for count in (30_000, 300_000))
    assert long <= 200
    assert long <= 1.1 * short


@pytest.mark.slow
def test_large_bodies_need_bounded_memory(topics: Topics) -> None:
    """Scenarios 35 and 8: 64 bodies of 4 MiB, in Spark's batches of 64 MiB."""
    topic = topics.make(1)
    assert high_water_mb("write", topics.namesrv, topic, LARGE_BODIES) <= 400
    assert high_water_mb("read", topics.namesrv, topic, LARGE_BODIES) <= 300
