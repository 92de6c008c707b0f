"""RocketMQ as a PySpark data source: batch and micro-batch reads, batch and streaming writes.

::

    from triomq.spark import register

    register(spark)
    frame = spark.read.format("rocketmq").option("nameServer", "127.0.0.1:9876").option("subscribe", "Topic").load()

Needs ``pip install 'triomq[spark]'``.  Importing it loads neither pyarrow nor numpy.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

if find_spec("pyspark") is None:
    raise ModuleNotFoundError("triomq.spark needs PySpark: pip install 'triomq[spark]'", name="pyspark")

from triomq.spark.progress import PrintProgress, deduplicated, lag
from triomq.spark.source import RocketMQDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Register ``format("rocketmq")`` with a session."""
    spark.dataSource.register(RocketMQDataSource)


__all__ = ["PrintProgress", "RocketMQDataSource", "deduplicated", "lag", "register"]
