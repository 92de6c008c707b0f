"""One Spark session, one JVM and one broker for all modules; a topic of its own for each test.

Only ``test_jobs`` ends the session, for jobs start their own, and modules with special brokers have a fixture for them.
With ``pytest -n 2 --dist loadfile`` each worker has a session and a broker.  Workers of Spark run this interpreter.  A
task that fails is tried again, as on a cluster, but once only.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes import Broker, start_triomq
from tests.spark import jvm_start
from tests.spark.harness import Topics, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


FEW_TESTS = 15


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give what Spark does time: a first job alone takes 7 s, and a minute on a machine with much else to do."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))
            # Sockets that PySpark leaves to the garbage collector, and what it uses of pandas.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning"))


@pytest.fixture(scope="session", autouse=True)
def _quick_jvms(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hand options on to each JVM that runs a driver, in this process tree.

    Few tests do without an archive of classes: making it takes longer than they do.
    """
    assert request.config.cache is not None
    tests = sum(Path(__file__).parent in item.path.parents for item in request.session.items)
    options = jvm_start.QUICK if tests < FEW_TESTS else jvm_start.options(request.config.cache.mkdir("spark-classes"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", options)
        yield


@pytest.fixture(scope="session")
def ended_sessions() -> Iterator[None]:
    """Stop the session that is left at the end."""
    yield
    stop_session()


@pytest.fixture(scope="module")
def spark(ended_sessions: None) -> Iterator["SparkSession"]:
    """The session that the modules share, since the first jobs of one take long; its streams end with the module."""
    from pyspark.sql import SparkSession

    from triomq.spark import register

    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    session = (
        SparkSession.builder.master("local[2,2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
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
