"""The data source ``rocketmq`` as Spark sees it, with its readers and writers.  Constructors do no I/O.

Source: spark.md 1.1, 1.2.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from triomq.client.sync import PullConsumer
from triomq.protocol.errors import ConfigError
from triomq.spark.logs import show_warnings
from triomq.spark.options.options import Options, Use, parse_options
from triomq.spark.reading.discovery import Discovery
from triomq.spark.reading.driver import StreamDriver
from triomq.spark.reading.planning import Partition, plan_partitions
from triomq.spark.reading.positions import batch_ranges
from triomq.spark.schema import read_ddl, wanted_columns

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter


class RocketMQDataSource(DataSource):
    """The data source ``rocketmq``: ``spark.dataSource.register(RocketMQDataSource)``."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format()``."""
        return "rocketmq"

    def schema(self) -> str:
        """Return the columns of a read without a schema."""
        return read_ddl()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch, with the columns of ``schema``."""
        return BatchReader(parse_options(self.options, Use.BATCH_READ), wanted_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Return the reader of a stream, with the columns of ``schema``."""
        return MicroBatchReader(parse_options(self.options, Use.STREAM_READ), wanted_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> "DataSourceWriter":
        """Return the writer of a batch."""
        from triomq.spark.writing.writer import BatchWriter, WriteTask  # needs pyarrow

        if overwrite:
            raise ConfigError("mode 'overwrite': a topic cannot be replaced; use mode 'append'")
        return BatchWriter(WriteTask.prepare(parse_options(self.options, Use.WRITE), schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> "DataSourceStreamWriter":  # noqa: N802
        """Return the writer of a stream; Spark asks for one per micro-batch."""
        from triomq.spark.writing.writer import StreamWriter, WriteTask  # needs pyarrow

        if overwrite:
            raise ConfigError("output mode 'complete': a topic cannot be replaced; use 'append' or 'update'")
        return StreamWriter(WriteTask.prepare(parse_options(self.options, Use.WRITE), schema))


@dataclass
class RangesPartition(InputPartition):
    """The ranges that one task reads."""

    ranges: Partition

    def __init__(self, ranges: Partition) -> None:
        super().__init__(None)
        self.ranges = ranges


def _read(options: Options, columns: Sequence[str], partition: InputPartition) -> Iterator[Any]:
    if not isinstance(partition, RangesPartition):
        return iter(())  # Spark's partition of an empty plan
    show_warnings()
    from triomq.spark.reading.partition_reader import read_ranges  # needs pyarrow, which the planner does not

    return read_ranges(options, columns, partition.ranges)


class BatchReader(DataSourceReader):
    """Plans and reads a batch."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """Ask the brokers for offsets, and split the ranges into partitions."""
        from triomq.spark.connections import borrow_client  # not needed to plan a schema

        show_warnings()
        options = self._options
        with borrow_client(options) as instance, PullConsumer(options["readGroup"], instance=instance) as consumer:
            discovery = Discovery(options, instance, consumer)
            retry = discovery.retry()
            queues = discovery.queues(retry)
            if discovery.unmatched:
                raise ConfigError(discovery.unmatched)
            bounds = discovery.all_bounds(queues, retry)
            ranges = batch_ranges(options, bounds, discovery.first_at)
        partitions = plan_partitions(
            ranges, least=options["minPartitions"], most_records=options["maxRecordsPerPartition"]
        )
        return [RangesPartition(partition) for partition in partitions]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield Arrow batches; runs in a worker."""
        return _read(self._options, self._columns, partition)


class MicroBatchReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads micro-batches; Spark keeps it in a separate process while the query runs."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._driver: StreamDriver | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query starts."""
        return self._get_driver().initial_offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the options set."""
        most = self._options["maxOffsetsPerTrigger"]
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch."""
        return self._get_driver().latest_offset(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of all queues."""
        return self._get_driver().report_latest()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Make this run end at the current ends of the queues."""
        self._get_driver().prepare_available_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Split a micro-batch into partitions."""
        return [RangesPartition(partition) for partition in self._get_driver().plan(start, end)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield Arrow batches; runs in a worker."""
        return _read(self._options, self._columns, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Note that a micro-batch is durable."""
        self._get_driver().commit(end)

    def stop(self) -> None:
        """Close the connections; Spark does not always call it."""
        if self._driver is not None:
            self._driver.close()

    def _get_driver(self) -> StreamDriver:
        if self._driver is None:
            show_warnings()
            self._driver = StreamDriver(self._options)
        return self._driver
