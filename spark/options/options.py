"""The options of the data source in one table: name, uses, default, parser, possible values, meaning.

Errors and the documentation are generated from it.  An error names options and possible values, never a given value:
that may be a secret, and Spark writes errors to logs and its event log.

Source: spark.md 4.1.
"""

import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from enum import Enum
from typing import Any, Final, NamedTuple

from triomq.client.config import SOURCES_TEXT
from triomq.protocol.errors import ConfigError
from triomq.protocol.missing import explain_missing
from triomq.protocol.record.compression import DEFAULT_MAX_BODY_BYTES
from triomq.spark.options import values as values

NAMESRV_VARIABLE: Final = "TRIOMQ_NAMESRV"
_KIB: Final = 1024
_MIB: Final = 1024**2
_MOST: Final = 2**63 - 1


class Use(Enum):
    """What the data source is used for."""

    BATCH_READ = "a batch read"
    STREAM_READ = "a streaming read"
    WRITE = "a write"


_BATCH: Final = frozenset((Use.BATCH_READ,))
_STREAM: Final = frozenset((Use.STREAM_READ,))
_READ: Final = _BATCH | _STREAM
_WRITE: Final = frozenset((Use.WRITE,))
_ALL: Final = _READ | _WRITE


class Option(NamedTuple):
    """One option.

    Attributes:
        name: as users write it; Spark ignores the case.
        uses: where it is allowed.
        default: value if the option is not given.
        parse: reads the text; raises ``ValueError`` that names the defect, not the text.
        values: description of possible values.
        doc: what the option does.
    """

    name: str
    uses: frozenset[Use]
    default: Any
    parse: Callable[[str], Any]
    values: str
    doc: str


def _count(name: str, uses: frozenset[Use], default: int | None, doc: str, least: int = 1, most: int = _MOST) -> Option:
    text = f"a whole number of {least} or more" if most == _MOST else f"a whole number, {least} to {most}"
    return Option(name, uses, default, values.number(least, most), text, doc)


def _switch(name: str, uses: frozenset[Use], doc: str, *, default: bool = False) -> Option:
    return Option(name, uses, default, values.boolean, "true or false", doc)


_JSON_OFFSETS: Final = 'JSON {"topic": {"broker": {"0": 23, "1": -1}}}, -2 = earliest, -1 = latest'
_TIME: Final = "milliseconds since 1970, or ISO 8601; in UTC unless it names a zone"

OPTIONS: Final = (
    Option("nameServer", _ALL, None, values.name_server, "host:port[;host:port...]",
           f"name servers; default: the environment variable {NAMESRV_VARIABLE}"),
    Option("subscribe", _READ, None, values.topics, "topics, separated by commas", "topics to read"),
    Option("subscribePattern", _READ, None, values.pattern, "a Python regular expression",
           "topics whose whole name matches; system topics only if the pattern starts with %"),
    Option("assign", _READ, None, values.assignment, 'JSON {"topic": {"broker": [0, 1]}}', "queues to read"),
    Option("credentials", _ALL, None, values.credentials, SOURCES_TEXT,
           "account for brokers with ACL; each process reads the file itself: lines accessKey: ..., secretKey: ... and "
           "optionally securityToken: ..."),
    Option("accessKey", _ALL, None, str.strip, "text", "the account itself, if the program may contain it"),
    Option("secretKey", _ALL, None, str.strip, "text", "belongs to accessKey"),
    Option("securityToken", _ALL, None, str.strip, "text", "belongs to accessKey, if the account has one"),
    _switch("tls", _ALL, "connect to name servers and brokers with TLS; the options below include it"),
    Option("tlsCa", _ALL, None, str, "a file", "certificates to trust; default: those of the system"),
    Option("tlsCert", _ALL, None, str, "a file", "own certificate, for brokers that want one"),
    Option("tlsKey", _ALL, None, str, "a file", "its private key"),
    Option("tlsVerify", _ALL, "host", values.choice("host", "ca", "none"), "host, ca or none",
           "checks of a server's certificate: signature and host name, only the signature, or none"),
    Option("advertise", _ALL, "as-advertised", values.choice("as-advertised", "as-dialled"),
           "as-advertised or as-dialled",
           "as-dialled: connect to brokers at the name server's host and their own port"),
    Option("topic", _WRITE, None, values.topic, "a topic", "topic of all rows; overrides the column topic"),
    Option("startingOffsets", _READ, None, values.start, f"earliest, latest (streaming only) or {_JSON_OFFSETS}",
           "where the first run starts; default: earliest in a batch, latest in a stream"),
    Option("startingTimestamp", _READ, None, values.time_ms, _TIME,
           "start at the first message stored at this time or later; at the end of a queue without one"),
    Option("endingOffsets", _BATCH, None, values.end, f"latest or {_JSON_OFFSETS}",
           "exclusive end of a batch; default: latest"),
    Option("endingTimestamp", _BATCH, None, values.time_ms, _TIME,
           "end before the first message stored at this time or later"),
    _switch("failOnDataLoss", _READ,
           "fail if messages to read no longer exist; otherwise log how many and continue", default=True),
    _count("minPartitions", _READ, None, "split queues until there are this many partitions"),
    _count("maxRecordsPerPartition", _READ, None, "split queues so that no partition has more offsets"),
    _count("maxOffsetsPerTrigger", _STREAM, None, "maximum number of offsets in a micro-batch"),
    Option("tags", _READ, "*", values.tags, "tags joined by ||, or *",
           "the broker filters, and the reader checks again"),
    Option("sql", _READ, None, values.sql, "a condition such as amount > 100",
           "the broker filters by properties; not with tags"),
    Option("group.id", _STREAM, None, values.group, "a group", "group to store offsets in, for tools that show lag"),
    Option("readGroup", _READ, "TRIOMQ_SPARK", values.group, "a group",
           "group name in pulls, for statistics and permissions"),
    _count("pullBatchSize", _READ, 1024, "messages per pull; Apache's brokers return at most 32", 1, 1024),
    _count("pullsInFlight", _READ, 8, "concurrent pulls of a task", 1, 64),
    _count("fetchBytes", _READ, 2 * _MIB, "approximate bytes in flight in a task", 64 * _KIB, 64 * _MIB),
    _count("batchBytes", _READ, 2 * _MIB, "approximate bytes of an Arrow batch", 64 * _KIB, 64 * _MIB),
    _count("offsetPollMs", _STREAM, 200, "interval at which brokers are asked for the ends of queues", 10),
    _count("discoveryIntervalMs", _STREAM, 30_000, "interval at which topics and queues are looked up", 1000),
    _count("maxBodyBytes", _READ, DEFAULT_MAX_BODY_BYTES, "limit of a decompressed body", _KIB, 1024 * _MIB),
    _count("planTimeoutMs", _ALL, 30_000, "limit for finding queues and offsets, with all attempts"),
    _count("readTimeoutMs", _ALL, 30_000, "how long a task retries while brokers do not answer"),
    _count("connectTimeoutMs", _ALL, 5000, "limit for opening a connection"),
    _count("sendTimeoutMs", _WRITE, 3000, "limit for one send"),
    _count("retries", _WRITE, 2, "further attempts of one send, on another broker if possible", 0, 100),
    _count("taskTimeoutMs", _WRITE, 600_000, "how long a task retries while brokers are busy"),
    _count("batchMessages", _WRITE, 500, "messages per send; 1: no batches", 1, 10_000),
    _count("batchSendBytes", _WRITE, 512 * _KIB, "approximate bytes per send", _KIB, 4 * _MIB),
    _count("sendsInFlight", _WRITE, 4, "concurrent sends of a task", 1, 64),
    _count("compressAbove", _WRITE, 4096, "compress bodies of at least this many bytes; 0: never", 0),
    _count("rateLimit", _WRITE, 0, "rows per second of a task; 0: no limit", 0),
    _switch("requireFlush", _WRITE, "fail if a message was stored, but not flushed or copied in time"),
)  # fmt: skip

_BY_KEY: Final = {option.name.lower(): option for option in OPTIONS}
#: Spark's own options, which it passes on.
_SPARKS_OWN: Final = frozenset(("checkpointlocation", "path", "querytype", "__paths__"))
#: Names that users of Apache's clients and of other connectors may try.
_OTHER_NAMES: Final = {
    "namesrv": "nameServer", "namesrvaddr": "nameServer", "subexpression": "tags", "consumergroup": "group.id",
    "groupid": "group.id", "groupidprefix": "readGroup", "topics": "subscribe",
    "usetls": "tls", "tls.enable": "tls", "sslenable": "tls",
    "bysql": "sql", "messageselector": "sql", "expressiontype": "sql", "filter": "sql",
    "kafka.bootstrap.servers": "nameServer", "bootstrap.servers": "nameServer", "kafka.group.id": "group.id",
    "kafka.security.protocol": "tls", "kafka.ssl.truststore.location": "tlsCa", "kafka.sasl.jaas.config": "credentials",
}  # fmt: skip
#: What to use instead of an option of the other direction.
_OTHER_USE: Final = {"topic": "subscribe", "subscribe": "topic"}
_TOPIC_OPTIONS: Final = ("subscribe", "subscribePattern", "assign")
_ALTERNATIVES: Final = (("startingOffsets", "startingTimestamp"), ("endingOffsets", "endingTimestamp"), ("tags", "sql"))


class Options:
    """Checked options: ``options["minPartitions"]`` is the given value or the default.

    Pickled with readers and writers.
    """

    def __init__(self, found: Mapping[str, Any]) -> None:
        """Take parsed values by option name; see :func:`parse_options`."""
        self._found = dict(found)

    def __getitem__(self, name: str) -> Any:
        """Return the value, or the default, of an option."""
        option = _BY_KEY[name.lower()]
        return self._found.get(option.name, option.default)

    def __repr__(self) -> str:
        """Show only names: values may be secrets."""
        return f"<Options {', '.join(sorted(self._found))}>"

    def given(self, name: str) -> bool:
        """Whether the user gave the option."""
        return name in self._found


def parse_options(given: Mapping[str, str], use: Use) -> Options:
    """Check options and their combinations without any I/O.

    Raises:
        ConfigError: names the first wrong option and its possible values.
    """
    found = {}
    for key, text in given.items():
        if key.lower() in _SPARKS_OWN:
            continue
        option = _BY_KEY.get(key.lower())
        if option is None:
            raise ConfigError(_unknown(key, use))
        if use not in option.uses:
            allowed = " and ".join(sorted(one.value for one in option.uses))
            instead = _OTHER_USE.get(option.name)
            hint = f": use option '{instead}'" if instead else ""
            raise ConfigError(f"option '{option.name}' is for {allowed}, this is {use.value}{hint}")
        found[option.name] = _parse(option, text)
    if "nameServer" not in found:
        text = os.environ.get(NAMESRV_VARIABLE, "")
        if not text:
            raise ConfigError(f"option 'nameServer' is missing (the environment has no {NAMESRV_VARIABLE} either)")
        found["nameServer"] = _parse(_BY_KEY["nameserver"], text)
    _check_account(found)
    if use is not Use.WRITE:
        _check_read(found, use)
    return Options(found)


def _parse(option: Option, text: str) -> Any:
    if not str(text).strip():
        raise ConfigError(f"option '{option.name}' is empty; possible: {option.values}")
    try:
        return option.parse(str(text))
    except ValueError as exc:
        raise ConfigError(f"option '{option.name}' {exc}; possible: {option.values}") from None


def _check_account(found: Mapping[str, Any]) -> None:
    given = [name for name in ("accessKey", "secretKey", "securityToken") if name in found]
    if given and "credentials" in found:
        raise ConfigError(f"give the option credentials or {' and '.join(given)}, not both")
    if given and not {"accessKey", "secretKey"} <= set(given):
        raise ConfigError(f"the options accessKey and secretKey belong together; given: {', '.join(given)}")
    given = [name for name in ("tlsCert", "tlsKey") if name in found]
    if len(given) == 1:
        raise ConfigError(f"the options tlsCert and tlsKey belong together; given: {given[0]}")


def _check_read(found: Mapping[str, Any], use: Use) -> None:
    chosen = [name for name in _TOPIC_OPTIONS if name in found]
    if len(chosen) != 1:
        raise ConfigError(f"give one of the options {', '.join(_TOPIC_OPTIONS)}; given: {', '.join(chosen) or 'none'}")
    for names in _ALTERNATIVES:
        if set(names) <= found.keys():
            raise ConfigError(f"give one of the options {' and '.join(names)}, not both")
    if found.get("endingTimestamp", values.LAST_MS) < found.get("startingTimestamp", 0):
        raise ConfigError("the time to end at is before the time to start at: nothing would be read")
    if use is Use.BATCH_READ and found.get("startingOffsets") == values.LATEST:
        raise ConfigError(
            "option 'startingOffsets' is latest: a batch would have nothing to read; latest is for streams"
        )


def _unknown(key: str, use: Use) -> str:
    if (missing := explain_missing(key)) is not None:
        return f"option '{key}': {missing}"
    names = [option.name for option in OPTIONS if use in option.uses]
    other = _OTHER_NAMES.get(key.lower())
    near = [other.lower()] if other in names else []
    near += get_close_matches(key.lower(), [name.lower() for name in names], n=3, cutoff=0.6)
    near = list(dict.fromkeys(near))
    hint = f"; near: {', '.join(_BY_KEY[name].name for name in near)}" if near else ""
    # The key may be a value given instead of a name, so the error repeats only what looks like a name.
    shown = f" '{key}'" if len(key) <= 40 and key.replace(".", "").isalnum() else ""
    return f"unknown option{shown}{hint}; options of {use.value}: {', '.join(names)}"
