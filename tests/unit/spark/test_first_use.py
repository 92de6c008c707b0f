"""What a user sees who has no PySpark or no Java."""

import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules
from unittest.mock import Mock

import pytest

from triomq.spark import RocketMQDataSource, register


@pytest.mark.parametrize("words", [("-m", "triomq.spark.jobs.consume"), ("-c", "import triomq.spark")])
def test_missing_pyspark_names_the_extra(words: tuple[str, str]) -> None:
    hide = "import sys, runpy; sys.modules['pyspark'] = None; "
    run = f"runpy.run_module({words[1]!r}, run_name='__main__')" if words[0] == "-m" else words[1]
    done = subprocess.run([sys.executable, "-c", hide + run], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "pip install 'triomq[spark]'" in done.stderr.splitlines()[-1]


def test_spark_finds_the_format_without_registration() -> None:
    """The rule is Spark's, in ``pyspark.sql.worker.lookup_data_sources``."""
    names = [info.name for info in iter_modules() if info.name.startswith("pyspark_")]
    sources = [getattr(import_module(name), "DefaultSource", None) for name in names]
    assert RocketMQDataSource in sources


@pytest.mark.parametrize(
    ("master", "chosen", "used"),
    [("local[2]", {}, sys.executable), ("local", {"PYSPARK_PYTHON": "x"}, "python3"), ("spark://h:1", {}, "python3")],
)
def test_registration_gives_local_workers_this_interpreter(
    monkeypatch: pytest.MonkeyPatch, master: str, chosen: dict[str, str], used: str
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    context = Mock(master=master, pythonExec="python3", environment={})
    session = Mock(sparkContext=context)
    register(session)
    assert session.sparkContext.pythonExec == used
    session.dataSource.register.assert_called_once_with(RocketMQDataSource)
