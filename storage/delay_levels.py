"""Delay levels: how long a message of level 1, 2, ... waits before it is delivered.

Source: ScheduleMessageService.java, parseDelayLevel; store.md 8.1.
"""

import re
from collections.abc import Callable
from typing import Final

from triomq.protocol.errors import ConfigError, MessageIllegalError
from triomq.protocol.record.properties import PropertyName, get_property

DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_DELAY: Final = PropertyName.DELAY_TIME_LEVEL.encode()
_INTEGER: Final = re.compile(rb"[+-]?[0-9]{1,10}")
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class DelayLevels:
    """A parsed ``messageDelayLevel`` setting.

    Attributes:
        delays_ms: milliseconds of level 1, level 2, ...
    """

    __slots__ = ("delays_ms",)

    def __init__(self, text: str = DEFAULT_DELAY_LEVELS) -> None:
        """Read ``text``: numbers with the unit s, m, h or d, separated by blanks.

        Raises:
            ConfigError: a part is not a positive number with a unit, or there is none.
        """
        self.delays_ms = tuple(_parse(part, text) for part in text.split())
        if not self.delays_ms:
            raise ConfigError("messageDelayLevel: no level given")

    @property
    def max_level(self) -> int:
        """The highest level; a message that asks for more gets this one."""
        return len(self.delays_ms)

    def due_time(self, level: int) -> Callable[[int, int], int]:
        """Return what gives the tags code of a message of ``level`` when it is appended: see ``append.DueTime``."""
        delay_ms = self.delays_ms[level - 1]
        # Store times never decrease: after the clock was set back they are ahead of it, and the delay would be longer.
        return lambda store_timestamp, now_ms: min(store_timestamp, now_ms) + delay_ms

    def delivery_time(self, level: int, store_timestamp: int) -> int:
        """Return when a message stored at ``store_timestamp`` (ms) is due; ``level`` must be at least 1."""
        return store_timestamp + self.delays_ms[min(level, self.max_level) - 1]


def requested_level(properties: bytes) -> int:
    """Return the level that a message's properties ask for, perhaps above the highest one; 0: no delay.

    Raises:
        MessageIllegalError: the property is there and is no number.
    """
    value = get_property(properties, _DELAY)
    if value is None:
        return 0
    if _INTEGER.fullmatch(value) is None:
        raise MessageIllegalError(f"delay level {value[:20]!r} is no number")
    return max(int(value), 0)


def _parse(part: str, text: str) -> int:
    number, unit = part[:-1], part[-1]
    if unit not in _UNIT_MS or not number.isascii() or not number.isdigit() or int(number) == 0:
        raise ConfigError(f"messageDelayLevel {text!r}: {part!r} is not a number with s, m, h or d")
    return int(number) * _UNIT_MS[unit]
