"""Parsers of option values.  They raise ``ValueError`` with the defect, never with the text.

The text may be a secret given under the wrong name, and errors are written to logs and the event log.
"""

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from triomq.client.config import check_source, parse_namesrv
from triomq.protocol.errors import SubscriptionParseError, TriomqError
from triomq.protocol.filters.filter_types import Sql, TagFilter
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.names import validate_group, validate_topic

_ADDRESSES: Final = re.compile(r"[\w.:;%\[\]\s-]+")
#: Numbers of seconds since 1973, which are too small for milliseconds of a time when RocketMQ existed.
_LEAST_SECONDS: Final = 100_000_000
_LEAST_MS: Final = 100_000_000_000
LAST_MS: Final = 100_000_000_000_000
LOGGER: Final = logging.getLogger("triomq.spark.options.values")
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
#: In the JSON of offsets.
EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1


def number(least: int, most: int) -> Callable[[str], int]:
    """Make a parser of whole numbers."""

    def parse(text: str) -> int:
        if re.fullmatch(r"-?\d{1,19}", text) is None:
            raise ValueError("is not a whole number")
        value = int(text)
        if not least <= value <= most:
            raise ValueError("is out of range")
        return value

    return parse


def boolean(text: str) -> bool:
    """Read ``true`` or ``false``."""
    return choice("true", "false")(text) == "true"


def choice(*words: str) -> Callable[[str], str]:
    """Make a parser of one of some words."""

    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"is not one of {', '.join(words)}")
        return text.lower()

    return parse


def _checked(check: Callable[[str], object], refusal: str) -> Callable[[str], str]:
    """Make a parser that returns the text without outer spaces, or says ``refusal`` if ``check`` raises."""

    def parse(text: str) -> str:
        text = text.strip()
        try:
            check(text)
        except TriomqError:
            raise ValueError(refusal) from None
        return text

    return parse


credentials: Final = _checked(check_source, "does not name a source")
topic: Final = _checked(validate_topic, "is not a topic name: letters, digits, %, |, -, _, at most 127")
group: Final = _checked(validate_group, "is not a group name: letters, digits, %, |, -, _, at most 255, no default")
tags: Final = _checked(TagFilter.parse_strictly, "is not a tag expression: A || B, or *")
_addresses: Final = _checked(parse_namesrv, "must be host:port, or several of them joined by ;")


def name_server(text: str) -> str:
    """Read ``host:port;host:port``."""
    if _ADDRESSES.fullmatch(text) is None:  # errors show addresses, so nothing else may pass as one
        raise ValueError("has characters that an address cannot have")
    return _addresses(text)


def topics(text: str) -> tuple[str, ...]:
    """Read topic names joined by commas."""
    return tuple(dict.fromkeys(topic(name) for name in text.split(",")))


def sql(text: str) -> Sql:
    """Read an SQL expression; the error names the place only, as the text may be private."""
    try:
        return Sql(text)
    except SubscriptionParseError as exc:
        place = re.search(r"character \d+", str(exc))
        raise ValueError(f"is not an SQL expression{(place and f': see {place[0]}') or ''}") from None


def pattern(text: str) -> str:
    """Read a regular expression."""
    try:
        re.compile(text)
    except re.error as exc:
        raise ValueError(f"is not a regular expression: {exc.msg} at position {exc.pos}") from None
    return text


def time_ms(text: str) -> int:
    """Read milliseconds since 1970, or a time of ISO 8601, by default in UTC."""
    if re.fullmatch(r"\d{1,18}", text):
        number = int(text)  # a small one, such as 0, means the earliest message
        if _LEAST_SECONDS <= number < _LEAST_MS:
            raise ValueError("looks like seconds: as milliseconds it is a time before 1974; multiply it by 1000")
        if number > LAST_MS:
            raise ValueError("looks like microseconds or nanoseconds: as milliseconds it is a time after the year 5000")
        return number
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("is neither milliseconds since 1970 nor a time such as 2026-01-31T12:00:00Z") from None
    if time.tzinfo is None:
        LOGGER.warning("time without zone read as UTC: append Z, or an offset such as +01:00")
        time = time.replace(tzinfo=UTC)
    return round(time.timestamp() * 1000)


def start(text: str) -> str | dict[MessageQueue, int]:
    """Read ``earliest``, ``latest`` or JSON of offsets."""
    return text.lower() if text.lower() in (EARLIEST, LATEST) else offsets(text)


def end(text: str) -> str | dict[MessageQueue, int]:
    """Read ``latest`` or JSON of offsets."""
    if text.lower() == EARLIEST:
        raise ValueError("must not be earliest: nothing would be read")
    return text.lower() if text.lower() == LATEST else offsets(text)


def offsets(text: str) -> dict[MessageQueue, int]:
    """Read ``{"topic": {"broker": {"queue": offset}}}``; -2 is the earliest offset, -1 the latest."""
    found = {}
    for topic_name, broker, queues, path in _by_broker(text):
        for queue_id, wanted in _members(queues, path):
            if not queue_id.isdecimal():
                raise ValueError(f"has no queue number at {path}.{queue_id}")
            if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < EARLIEST_OFFSET:
                raise ValueError(f"must have an offset, -2 (earliest) or -1 (latest) at {path}.{queue_id}")
            found[MessageQueue(topic_name, broker, int(queue_id))] = wanted
    return found


def assignment(text: str) -> tuple[MessageQueue, ...]:
    """Read ``{"topic": {"broker": [queue, ...]}}``."""
    queues = set()
    for topic_name, broker, ids, path in _by_broker(text):
        if not isinstance(ids, list) or not ids:
            raise ValueError(f"has no list of queue numbers at {path}")
        for queue_id in ids:
            if not isinstance(queue_id, int) or isinstance(queue_id, bool) or queue_id < 0:
                raise ValueError(f"must have only queue numbers at {path}")
            queues.add(MessageQueue(topic_name, broker, queue_id))
    return tuple(sorted(queues))


def _by_broker(text: str) -> Iterator[tuple[str, str, Any, str]]:
    """Yield topic, broker, value and its path of ``{"topic": {"broker": value}}``."""
    try:
        found = json.loads(text)
    except ValueError as exc:
        where = f" at position {exc.pos}" if isinstance(exc, json.JSONDecodeError) else ""
        raise ValueError(f"is not JSON{where}") from None
    for topic_name, brokers in _members(found, "$"):
        for broker, value in _members(brokers, f"$.{topic_name}"):
            yield topic_name, broker, value, f"$.{topic_name}.{broker}"


def _members(value: Any, path: str) -> list[tuple[str, Any]]:
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"must be a non-empty object at {path}")
    return list(value.items())
