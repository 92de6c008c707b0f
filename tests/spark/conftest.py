"""One Spark session, JVM and broker for all modules; each test has its own topic.

Only ``test_jobs`` stops the session, because jobs start their own; modules that need other brokers have fixtures.  With
``pytest -n 2 --dist loadfile`` each worker has a session and a broker.  Spark's workers run this interpreter.  A failed
task is tried once more.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.processes import Broker, start_triomq
from tests.spark.harness import Topics, stop_session
from triomq.spark import register

#: Quick compilation: full optimization does not pay in a JVM that runs for minutes.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raise the time limit: a first job takes 7 s, on a busy machine a minute."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))
            # PySpark leaves sockets to the garbage collector and uses deprecated parts of pandas.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning"))


@pytest.fixture(scope="session", autouse=True)
def _quick_jvms() -> Iterator[None]:
    """Set the options of every driver JVM in this process tree."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", JVM_OPTIONS)
        yield


@pytest.fixture(scope="session")
def ended_sessions() -> Iterator[None]:
    """Stop the last session at the end."""
    yield
    stop_session()


@pytest.fixture(scope="module")
def spark(ended_sessions: None) -> Iterator[SparkSession]:
    """The session shared by the modules, because its first jobs are slow; streams end with their module."""
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    session = (
        SparkSession.builder.master("local[2,2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.authenticate.socketTimeout", "240s")  # on a busy machine workers start late
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    register(session)
    try:
        yield session
    finally:
        for query in session.streams.active:
            query.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with start_triomq(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="session")
def topics(broker: Broker) -> Iterator[Topics]:
    with Topics(broker.namesrv) as opened:
        yield opened


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[[str], str]:
    return lambda name: str(tmp_path / name)
