"""RocketMQ as a PySpark data source: batch and micro-batch reads, batch and streaming writes.

::

    frame = spark.read.format("rocketmq").option("nameServer", "127.0.0.1:9876").option("subscribe", "Topic").load()

Needs ``pip install 'triomq[spark]'``.  Importing it loads neither pyarrow nor numpy.
"""

import os
import sys
from importlib.util import find_spec

if find_spec("pyspark") is None:
    raise ModuleNotFoundError("triomq.spark needs PySpark: pip install 'triomq[spark]'", name="pyspark")

from pyspark.sql import SparkSession

from triomq.spark.progress import PrintProgress, deduplicated, lag
from triomq.spark.source import RocketMQDataSource


def register(spark: SparkSession) -> None:
    """Register ``format("rocketmq")`` with a session.

    Spark finds the format without this where its workers' Python has triomq installed; it is needed with a zip.  On a
    local master, workers run this interpreter from now on, unless ``PYSPARK_PYTHON`` is set.
    """
    context = spark.sparkContext
    if (context.master or "").startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
    if context.getConf().get("spark.submit.pyFiles"):
        # Spark 4.3 does not pass these files to the process of a stream's reader, which runs next to the driver.
        context.environment.setdefault("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    spark.dataSource.register(RocketMQDataSource)


__all__ = ["PrintProgress", "RocketMQDataSource", "deduplicated", "lag", "register"]
