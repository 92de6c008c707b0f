"""Lets Spark find the format ``rocketmq``: it imports each module named ``pyspark_...`` for its ``DefaultSource``."""

from contextlib import suppress

with suppress(ImportError):  # an error here would end each query with a Python data source
    from triomq.spark.source import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
