"""The data source ``rocketmq`` as Spark sees it, with its readers and writers.  Constructors do no I/O.

Source: spark.md 1.1, 1.2.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from triomq.client.sync import PullConsumer
from triomq.protocol.errors import ConfigError
from triomq.spark.connections import borrow_client, show_warnings
from triomq.spark.options.options import Options, Use, parse_options
from triomq.spark.reading.discovery import Discovery, batch_ranges
from triomq.spark.reading.driver import MicroBatchReader, read_partition
from triomq.spark.reading.planning import plan_partitions
from triomq.spark.schema import READ_TYPES, ddl_of, wanted_columns


class RocketMQDataSource(DataSource):
    """The data source ``rocketmq``: ``spark.dataSource.register(RocketMQDataSource)``."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format()``."""
        return "rocketmq"

    def schema(self) -> str:
        """Return the columns of a read without a schema."""
        return ddl_of(READ_TYPES)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch, with the columns of ``schema``."""
        return BatchReader(parse_options(self.options, Use.BATCH_READ), wanted_columns(schema))

    def streamReader(self, schema: StructType) -> MicroBatchReader:  # noqa: N802  # Spark's name
        """Return the reader of a stream, with the columns of ``schema``."""
        return MicroBatchReader(parse_options(self.options, Use.STREAM_READ), wanted_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch."""
        from triomq.spark.writing.writer import BatchWriter  # needs pyarrow

        if overwrite:
            raise ConfigError("mode 'overwrite': a topic cannot be replaced; use mode 'append'")
        return BatchWriter(parse_options(self.options, Use.WRITE), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a stream; Spark asks for one per micro-batch."""
        from triomq.spark.writing.writer import StreamWriter  # needs pyarrow

        if overwrite:
            raise ConfigError("output mode 'complete': a topic cannot be replaced; use 'append' or 'update'")
        return StreamWriter(parse_options(self.options, Use.WRITE), schema)


class BatchReader(DataSourceReader):
    """Plans and reads a batch."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """Ask the brokers for offsets, and split the ranges into partitions."""
        show_warnings()
        options = self._options
        with borrow_client(options) as instance, PullConsumer(options["readGroup"], instance=instance) as consumer:
            discovery = Discovery(options, instance, consumer)
            retry = discovery.retry()
            queues = discovery.queues(retry)
            if discovery.unmatched:
                raise ConfigError(discovery.unmatched)
            bounds = discovery.bounds(queues, retry, complete=True)
            ranges = batch_ranges(options, bounds.queues, discovery.first_at)
        return plan_partitions(ranges, options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield Arrow batches; runs in a worker."""
        return read_partition(self._options, self._columns, partition)
