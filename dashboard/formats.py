"""Numbers, sizes, times and links as pages show them."""

from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, urlencode

from markupsafe import Markup

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_KILO: Final = 1024
_SMALL: Final = 10
NOTHING: Final = "–"


def to(page: str, /, **query: object) -> str:
    """Return the relative address of a page: ``to("topic", name="orders")``; ``""`` is the overview.

    All pages are in one folder, and names are in the query, where any text is possible.  So addresses work under each
    path of a proxy.
    """
    words = {name: str(value) for name, value in query.items() if value not in (None, "")}
    return (quote(page) or "./") + (f"?{urlencode(words)}" if words else "")


def number(value: float | None) -> str:
    """Return a whole number with groups of three digits."""
    return NOTHING if value is None else f"{round(value):,}".replace(",", "\u202f")


def rate(value: float | None) -> str:
    """Return a number per second: below 10 with one decimal."""
    if value is None:
        return NOTHING
    return f"{value:.1f}" if 0 < value < _SMALL else number(value)


def size(value: float | None) -> str:
    """Return a number of bytes in the unit that suits it: ``1.5 GiB``."""
    if value is None:
        return NOTHING
    power = 0
    while value >= _KILO and power < len(_UNITS) - 1:
        value /= _KILO
        power += 1
    return f"{value:.0f} {_UNITS[power]}" if not power else f"{value:.1f} {_UNITS[power]}"


def percent(share: float | None) -> str:
    """Return a share, 0 to 1, as a percentage."""
    return NOTHING if share is None else f"{share:.0%}"


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units: ``3 d 4 h``."""
    if seconds is None:
        return NOTHING
    rest, parts = round(seconds), list[str]()
    for length, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if rest >= length or (parts and rest) or (not parts and unit == "s"):
            parts.append(f"{rest // length} {unit}")
            rest %= length
    return " ".join(parts[:2])


def when(time_ms: int | None) -> Markup:
    """Return a time as an element that the browser shows in the viewer's zone; without a script it is UTC."""
    if time_ms is None or time_ms <= 0:
        return Markup("–")
    try:
        time = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError):  # a wrong clock, or a damaged disk
        return Markup("{} ms").format(time_ms)
    return Markup('<time datetime="{}">{} UTC</time>').format(
        time.isoformat(timespec="milliseconds").replace("+00:00", "Z"), time.strftime("%Y-%m-%d %H:%M:%S")
    )
