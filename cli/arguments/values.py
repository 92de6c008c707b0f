"""Parse the values of options: sizes, rates, durations, times, properties."""

import math
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias, TypeVar, cast

from triomq.protocol.errors import IllegalNameError, SubscriptionParseError
from triomq.protocol.filters.filter_types import Sql, TagFilter
from triomq.protocol.namespace import Namespace
from triomq.protocol.record.message import NOT_SELECTABLE, is_selectable

StartAt: TypeAlias = Literal["earliest", "latest"] | datetime
_T = TypeVar("_T")

_SIZE: Final = re.compile(r"(\d+) ?(?:([KMG])(?:iB)?|B)?", re.IGNORECASE)
_SIZE_FACTORS: Final = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)?")
_DURATION_FACTORS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
RELATIVE_TIME: Final = re.compile(r"-\d+(?:\.\d+)?[smhd]?")


def parse_size(text: str) -> int:
    """Return the bytes of ``500``, ``64KiB``, ``64K``, ``1GiB``.

    Raises:
        ArgumentTypeError: it is none of these.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ArgumentTypeError(f"invalid size {text!r}: write bytes, or a number with KiB, MiB or GiB, such as 64MiB")
    return int(found[1]) * _SIZE_FACTORS[(found[2] or "").upper()]


def parse_duration(text: str) -> float:
    """Return the seconds of ``30``, ``1.5s``, ``10m``, ``2h``, ``1d``.

    Raises:
        ArgumentTypeError: it is none of these.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ArgumentTypeError(f"invalid duration {text!r}: write seconds, or a number with s, m, h or d, such as 10m")
    return float(found[1]) * _DURATION_FACTORS[found[2] or ""]


def parse_rate(text: str) -> float:
    """Return the number per second of ``500`` or ``500/s``.

    Raises:
        ArgumentTypeError: it is not a number above 0.
    """
    error = f"invalid rate {text!r}: write messages per second, such as 500 or 500/s"
    return _number(text.strip().removesuffix("/s"), error, above=0)


def parse_speed(text: str) -> float:
    """Return a factor; 0 for ``max``, as fast as possible.

    Raises:
        ArgumentTypeError: it is not a number, 0 or more.
    """
    number = "0" if text == "max" else text.removesuffix("x")
    return _number(number, f"invalid speed {text!r}: write a factor such as 2 or 0.5, or max")


def parse_namesrv(text: str) -> str:
    """Return name servers unchanged, ``host:port;host:port``.

    Raises:
        ArgumentTypeError: there is a comma between them.
    """
    if "," in text:
        raise ArgumentTypeError(f"{text!r}: separate name servers with ;, as in {text.replace(',', ';')!r}")
    return text


def parse_namespace(text: str) -> str:
    """Return the name of a namespace.

    Raises:
        ArgumentTypeError: the name is not valid.
    """
    _made(Namespace, text)
    return text


def parse_positive(text: str) -> int:
    """Return a whole number above 0.

    Raises:
        ArgumentTypeError: it is not one.
    """
    return _whole(text, f"{text!r} is not a whole number above 0", least=1)


def parse_count(text: str) -> int:
    """Return a whole number, 0 or more.

    Raises:
        ArgumentTypeError: it is not one.
    """
    return _whole(text, f"{text!r} is not a whole number")


def _whole(text: str, error: str, least: int = 0, most: float = math.inf) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        raise ArgumentTypeError(error)
    return int(text)


def parse_hours(text: str) -> float:
    """Return a number of hours, 0 or more.

    Raises:
        ArgumentTypeError: it is not one.
    """
    return _number(text, f"invalid number of hours {text!r}: write 72, or 0.5 for half an hour")


def _number(text: str, error: str, above: float = -1) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not max(0, above) <= number < math.inf or number == above:
        raise ArgumentTypeError(error)
    return number


def parse_hours_of_day(text: str) -> tuple[int, ...]:
    """Return the hours of ``04`` or ``4;16``.

    Raises:
        ArgumentTypeError: one is not 0 to 23.
    """
    hours = text.split(";")
    if not all(hour.strip().isdecimal() and int(hour) < 24 for hour in hours):
        raise ArgumentTypeError(f"invalid hours {text!r}: write 0 to 23, separated by ;, such as 4;16")
    return tuple(map(int, hours))


def parse_percent(text: str) -> int:
    """Return a whole number, 0 to 100.

    Raises:
        ArgumentTypeError: it is not one.
    """
    error = f"invalid percentage {text!r}: write a whole number, 0 to 100"
    return _whole(text.strip().removesuffix("%").strip(), error, most=100)


def parse_property(text: str) -> tuple[str, str]:
    """Return name and value of ``name=value``.

    Raises:
        ArgumentTypeError: the ``=`` or the name before it is missing.
    """
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ArgumentTypeError(f"invalid property {text!r}: write name=value")
    return name, value


def parse_place(text: str) -> tuple[str, int, int]:
    """Return broker name, queue id and offset of ``broker-a:0:17``.

    Raises:
        ArgumentTypeError: it has another form.
    """
    broker_name, *numbers = text.rsplit(":", 2)
    if not broker_name or len(numbers) != 2 or not all(number.isdecimal() for number in numbers):  # queue, offset
        raise ArgumentTypeError(f"invalid place {text!r}: write BROKER:QUEUE:OFFSET, such as broker-a:0:17")
    return broker_name, int(numbers[0]), int(numbers[1])


def parse_tag(text: str) -> str:
    """Return the tag of a message.

    Raises:
        ArgumentTypeError: no consumer could select it.
    """
    if not is_selectable(text):
        raise ArgumentTypeError(f"{text!r}: {NOT_SELECTABLE}; a message has one tag")
    return text


def parse_sql_expression(text: str) -> Sql:
    """Return a condition such as ``amount > 100``.

    Raises:
        ArgumentTypeError: it is not one.
    """
    return _made(Sql, text)


def parse_tag_expression(text: str) -> str:
    """Return an expression such as ``TagA || TagB`` or ``*``.

    Raises:
        ArgumentTypeError: it is not one.
    """
    return _made(TagFilter.parse_strictly, text).expression


def _made(make: Callable[[str], _T], text: str) -> _T:
    try:
        return make(text)
    except (IllegalNameError, SubscriptionParseError) as exc:
        raise ArgumentTypeError(str(exc)) from exc


def parse_start(text: str) -> StartAt:
    """Return where to start: ``earliest``, ``latest``, an ISO 8601 time, or ``-10m`` for ten minutes ago.

    A time without zone is local time.

    Raises:
        ArgumentTypeError: it is none of these.
    """
    if text in ("earliest", "latest"):
        return cast("Literal['earliest', 'latest']", text)
    return parse_time(text, "start {!r}: write earliest, latest, a time such as 2026-01-31T12:00, or -10m")


def parse_time(
    text: str, advice: str = "time {!r}: write it as 2026-01-31T12:00, or -10m for ten minutes ago"
) -> datetime:
    """Return an ISO 8601 time, or that of ``-10m``, ten minutes ago; a time without zone is local time.

    Raises:
        ArgumentTypeError: it is none of these.
    """
    try:
        if RELATIVE_TIME.fullmatch(text):
            return datetime.now(UTC) - timedelta(seconds=parse_duration(text[1:]))
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise ArgumentTypeError(f"invalid {advice.format(text)}") from None


#: How a value is read, by the name that the help gives it; other values are text.
KINDS: Final[Mapping[str, Callable[[str], object]]] = {
    "BROKER:QUEUE:OFFSET": parse_place,
    "BYTES": parse_size,
    "EXPR": parse_tag_expression,
    "COUNT": parse_count,
    "HOST:PORT[;HOST:PORT]": parse_namesrv,
    "HOUR[;HOUR...]": parse_hours_of_day,
    "HOURS": parse_hours,
    "N": parse_positive,
    "N/s": parse_rate,
    "NUMBER": parse_count,
    "NAME=VALUE": parse_property,
    "PERCENT": parse_percent,
    "S": parse_duration,
    "SIZE": parse_size,
    "SQL": parse_sql_expression,
    "TAG": parse_tag,
    "TIME": parse_time,
    "WHEN": parse_start,
    "WHERE": parse_start,
}
