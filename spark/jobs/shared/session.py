"""The Spark session of a job: quiet, small, and with this Python interpreter for local workers.

Source: spark.md 7 (3, 12), 8.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkRuntimeError
from pyspark.logger import PySparkLogger

from triomq.protocol.errors import ConfigError
from triomq.spark import register
from triomq.spark.jobs.shared.stopping import SUBMITTED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
#: A failed task is retried, as on a cluster; with ``local[*]`` it would end the job.
DEFAULT_MASTER: Final = "local[*,4]"
JAVA_HINT: Final = (
    "Spark needs Java 17 or newer and could not start it: install it (Debian and Ubuntu: apt install "
    "openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME to its folder"
)
_DRIVER_MEMORY: Final = "1g"
_STOP_TIMEOUT: Final = "30s"
_PY_FILES: Final = "spark.submit.pyFiles"
_LOOPBACK: Final = "127.0.0.1"
#: These loggers write an error with the JVM's whole stack as JSON before it is raised; we report it on one line.
_QUERY_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")


def submit_settings() -> dict[str, str]:
    """Return the settings that the JVM needs at its start to be quiet from the first line."""
    return {
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}",
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.enabled": "false",
    }


def open_session(job: str, master: str | None) -> "SparkSession":
    """Start a session, or use the one of ``spark-submit``, and register the data source.

    Args:
        job: name of the job, part of the application's name.
        master: Spark master; ``None``: that of ``spark-submit``, else the cores of this machine.

    Raises:
        ConfigError: Java is missing or too old.
    """
    from pyspark.sql import SparkSession

    for name in _QUERY_LOGGERS:
        PySparkLogger.getLogger(name).disabled = True
    builder = SparkSession.builder.appName(f"triomq {job}")
    is_submitted = SUBMITTED in os.environ
    if not is_submitted:
        master = master or DEFAULT_MASTER
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)  # no other host needs to reach this JVM
        for name, value in submit_settings().items():
            builder = builder.config(name, value)
        builder = builder.config("spark.driver.memory", _DRIVER_MEMORY)
    if master is not None:
        builder = builder.master(master)
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as exc:
        if exc.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise ConfigError(JAVA_HINT) from exc
    context = spark.sparkContext
    _set_defaults(spark)
    if context.getConf().get(_PY_FILES):
        # Spark 4.3 does not pass these files to the process of a stream's reader, which runs next to the driver.
        context.environment.setdefault("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    register(spark)
    return spark


def _set_defaults(spark: "SparkSession") -> None:
    """Set defaults for what neither the command line nor the cluster's configuration sets."""
    context = spark.sparkContext
    defaults = {
        "spark.sql.shuffle.partitions": str(2 * context.defaultParallelism),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stopTimeout": _STOP_TIMEOUT,
    }
    for name, value in defaults.items():
        if not context.getConf().contains(name):
            spark.conf.set(name, value)
