"""``python -m tests.spark.leaking NAMESRV TOPIC FOLDER SECRET``: every way to go wrong with a secret in the options.

The event log, the checkpoints and whatever is printed go to FOLDER and to stdout; the test looks for the secret there.
The last line has the number of errors.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.checkpoints import change_newest
from triomq.spark import register

Attempt = Callable[[dict[str, str]], None]
#: Into a file: Spark keeps INFO from a console.
LOGGING = """
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = File
appender.out.name = out
appender.out.fileName = {folder}/driver.log
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %p %c: %m%n%ex
"""
#: Options whose text is parsed; ``test_options.py`` checks that no option's error shows a value.
PARSED = ("nameServer", "subscribePattern", "assign", "startingOffsets")


def start_session(folder: Path) -> SparkSession:
    (folder / "events").mkdir()
    settings = folder / "log4j2.properties"
    settings.write_text(LOGGING.format(folder=folder))
    session = (
        SparkSession.builder.master("local[2,2]").config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={settings.as_uri()}")
        .config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", (folder / "events").as_uri())
        .config("spark.eventLog.compress", "false").config("spark.sql.shuffle.partitions", "1").getOrCreate()
    )  # fmt: skip
    session.sparkContext.setLogLevel("INFO")
    register(session)
    return session


class Attempts:
    """The ways to use the data source, each with more options."""

    def __init__(self, spark: SparkSession, namesrv: str, topic: str, folder: Path) -> None:
        self._spark = spark
        self._common = {"nameServer": namesrv, "connectTimeoutMs": "200", "planTimeoutMs": "300"}
        self._topic = topic
        self._folder = folder

    def _with(self, target: Any, more: dict[str, str], **options: str) -> Any:
        given = {name.lower(): value for name, value in (self._common | options).items()}
        given |= {name.lower(): value for name, value in more.items()}
        return target.format("rocketmq").options(**given)

    def batch_read(self, more: dict[str, str]) -> None:
        frame = self._with(self._spark.read, more, subscribe=self._topic).load()
        frame.explain("extended")
        frame.collect()

    def stream_read(self, more: dict[str, str]) -> None:
        frame = self._with(self._spark.readStream, more, subscribe=self._topic, startingOffsets="earliest").load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(self._folder / "read"))
        query = writer.trigger(availableNow=True).start()
        query.explain(True)
        try:
            query.awaitTermination(60)
        finally:
            print(query.status, query.recentProgress, query.exception())

    def batch_write(self, more: dict[str, str]) -> None:
        rows = self._spark.range(2).selectExpr("cast(id as string) as body")
        rows.explain("extended")
        self._with(rows.write, more, topic=self._topic, taskTimeoutMs="500", readTimeoutMs="500").mode("append").save()

    def bad_row(self, more: dict[str, str]) -> None:
        rows = self._spark.range(1).selectExpr("cast(null as string) as body")
        self._with(rows.write, more, topic=self._topic).mode("append").save()

    def overwrite(self, more: dict[str, str]) -> None:
        rows = self._spark.range(1).selectExpr("cast(id as string) as body")
        self._with(rows.write, more, topic=self._topic).mode("overwrite").save()

    def wrong_column(self, more: dict[str, str]) -> None:
        self._with(self._spark.read, more, subscribe=self._topic).schema("nothing string").load().collect()

    def data_loss(self, more: dict[str, str]) -> None:
        """Go on from a checkpoint that is beyond the end of the queue."""
        offset = {"v": 1, "q": {self._topic: {"broker-a": {"0": 10**6}}}, "from": {}, "at": 0}
        change_newest(str(self._folder / "read"), lambda _: offset)
        self.stream_read(more)

    def stream_write(self, more: dict[str, str]) -> None:
        rows = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load()
        rows = rows.selectExpr("cast(value as string) as body")
        writer = self._with(rows.writeStream, more, topic=self._topic)
        query = writer.option("checkpointLocation", str(self._folder / "write")).trigger(once=True).start()
        try:
            query.awaitTermination(60)
        finally:
            print(query.status, query.recentProgress, query.exception())


def errors(attempts: Attempts, secret: str, secret_file: str) -> Iterator[tuple[Attempt, dict[str, str]]]:
    """Yield what must end with an error; ``secret_file`` holds the secret, and no account."""
    account = {"accessKey": "marker", "secretKey": secret}
    for one in (attempts.batch_read, attempts.stream_read, attempts.batch_write, attempts.stream_write):
        yield one, {"secretKey": secret}
    for name in ("accessKey", "securityToken", "credentials", "apiPassword"):
        yield attempts.batch_read, {name: secret}
    yield attempts.batch_read, {"credentials": f"file:{secret_file}"}
    yield attempts.batch_write, {"nameServer": "127.0.0.1:1", **account}
    yield attempts.batch_read, {"nameServer": "127.0.0.1:1", "planTimeoutMs": "500", **account}
    for one in (attempts.bad_row, attempts.overwrite, attempts.wrong_column, attempts.data_loss):
        yield one, account
    yield attempts.batch_read, {"subscribe": "no-such-topic", **account}
    for name in PARSED:
        yield attempts.batch_read, {name: f"({secret} {{"}


def main(namesrv: str, topic: str, folder: str, secret_file: str) -> None:
    secret = Path(secret_file).read_text()
    spark = start_session(Path(folder))
    attempts = Attempts(spark, namesrv, topic, Path(folder))
    for good in (attempts.batch_read, attempts.stream_read, attempts.batch_write, attempts.stream_write):
        good({"accessKey": "marker", "secretKey": secret, "securityToken": secret})
    count = 0
    for one, more in errors(attempts, secret, secret_file):
        try:
            one(more)
        except PySparkException as exc:
            count += 1
            print(exc)
        else:
            print(f"NO ERROR: {one.__name__} with {', '.join(more)}")
            sys.exit(1)
    spark.stop()
    print(f"{count} errors")


if __name__ == "__main__":
    main(*sys.argv[1:])
