"""When delayed messages are due: delay levels, delivery times set by the sender, and the times that the store keeps.

A level is asked for by the property ``DELAY``, a delivery time by those of RocketMQ 5.x: ``TIMER_DELAY_SEC``, else
``TIMER_DELAY_MS``, else ``TIMER_DELIVER_MS``.  The broker stores the resulting time with the message as
``TIMER_OUT_MS``.  While a message waits, its consume queue unit holds its delivery time in place of the tags code.

Source: RocketMQ 4.9.7 ScheduleMessageService.java, parseDelayLevel; RocketMQ 5.5.0 HookUtils.java,
transformTimerMessage; TimerMessageStore.java, doEnqueue; store.md 3.2, 8.1.
"""

import re
from collections.abc import Callable
from typing import Final

from triomq.protocol.errors import ConfigError, MessageIllegalError
from triomq.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from triomq.protocol.record.properties import PropertyName, get_property, remove_property
from triomq.protocol.record.record import RecordCheck

DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

WAITING_TOPICS: Final = frozenset((SCHEDULE_TOPIC, TIMER_TOPIC))
"""Topics whose units hold delivery times in place of tags codes."""

TagsCodeOf = Callable[[RecordCheck], int]
"""Returns the tags code for the unit of a stored record."""

ROLL_WINDOW_MS: Final = 2 * 86_400_000
"""A message that waits longer is stored again before it is due, so that retention keeps it.  timerRollWindowSlot"""

ROLL_AFTER_MS: Final = (ROLL_WINDOW_MS // 2, ROLL_WINDOW_MS)
"""A message that is not due yet is stored again this long after it was stored."""

RECALL_LEAD_MS: Final = 1000
"""So much before a message is due the request to take it back is read; RocketMQ 5.x puts both into one second."""

OUT_MS: Final = PropertyName.TIMER_OUT_MILLIS.encode()
_LEVEL: Final = PropertyName.DELAY_TIME_LEVEL.encode()
_DELAY_S: Final = PropertyName.TIMER_DELAY_SECONDS.encode()
_DELAY_MS: Final = PropertyName.TIMER_DELAY_MILLIS.encode()
_DELIVER_MS: Final = PropertyName.TIMER_DELIVER_MILLIS.encode()
_DELETES: Final = PropertyName.TIMER_DELETE_UNIQUE_KEY.encode()
_REQUESTS: Final = (_DELAY_S, _DELAY_MS, _DELIVER_MS)
_MAX_LEVEL_DIGITS: Final = 10
_MAX_TIME_DIGITS: Final = 18
_INTEGER: Final = re.compile(rb"[+-]?([0-9]+)")
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class DelayLevels:
    """A parsed ``messageDelayLevel`` setting.

    Attributes:
        delays_ms: delay of level 1, level 2, ...
    """

    def __init__(self, text: str = DEFAULT_DELAY_LEVELS) -> None:
        """Parse ``text``: numbers with the unit s, m, h or d, separated by blanks.

        Raises:
            ConfigError: a part is not a positive number with a unit, or ``text`` is empty.
        """
        self.delays_ms = tuple(_parse(part, text) for part in text.split())
        if not self.delays_ms:
            raise ConfigError("messageDelayLevel: no level given")

    def __str__(self) -> str:
        """Return the levels as they are written, each in the longest unit that fits."""
        texts = []
        for delay_ms in self.delays_ms:
            name, unit_ms = [unit for unit in _UNIT_MS.items() if delay_ms % unit[1] == 0][-1]
            texts.append(f"{delay_ms // unit_ms}{name}")
        return " ".join(texts)

    def due_time(self, level: int) -> Callable[[int, int], int]:
        """Return the function that computes the tags code of a message of ``level``: see ``append.DueTime``."""
        delay_ms = self.delays_ms[level - 1]
        # After a small step back of the clock store times are ahead of it and would prolong the delay.
        return lambda store_timestamp, now_ms: min(store_timestamp, now_ms) + delay_ms

    def delivery_time(self, level: int, store_timestamp: int) -> int:
        """Return when a message stored at ``store_timestamp`` (ms) is due.

        ``level`` must be at least 1; a message that asks for more than the highest one gets that.
        """
        return store_timestamp + self.delays_ms[min(level, len(self.delays_ms)) - 1]


def requested_level(properties: bytes) -> int:
    """Return the delay level that the properties ask for, possibly above the highest; 0 for no delay.

    Raises:
        MessageIllegalError: the property is not a number.
    """
    value = get_property(properties, _LEVEL)
    if value is None:
        return 0
    if not _is_integer(value, _MAX_LEVEL_DIGITS):
        raise MessageIllegalError(f"delay level {value[:20]!r} is not a number of at most {_MAX_LEVEL_DIGITS} digits")
    return max(int(value), 0)


def requested_time(properties: bytes, now_ms: int) -> int | None:
    """Return the delivery time that the properties ask for (ms, possibly in the past), or ``None``.

    A request counts only until the message has waited once.

    Raises:
        MessageIllegalError: the property is not a number.
    """
    for name in _REQUESTS:
        value = get_property(properties, name)
        if value is not None:
            break
    else:
        return None
    if get_property(properties, OUT_MS) is not None:
        return None
    if not _is_integer(value, _MAX_TIME_DIGITS):
        text = f"{name.decode()} {value[:40]!r} is not a number of at most {_MAX_TIME_DIGITS} digits"
        raise MessageIllegalError(text)
    if name == _DELIVER_MS:
        return int(value)
    return now_ms + int(value) * (1000 if name == _DELAY_S else 1)


def without_request(properties: bytes) -> bytes:
    """Return the properties without requests for a delivery time."""
    for name in _REQUESTS:
        properties = remove_property(properties, name)
    return properties


def stored_time(properties: bytes) -> int:
    """Return when a waiting message is due (ms); 0, which is long ago, if its properties do not say.

    One that takes another message back is due a little earlier than that one.
    """
    value = get_property(properties, OUT_MS)
    due_ms = int(value) if value is not None and _is_integer(value, _MAX_TIME_DIGITS) else 0
    return due_ms - RECALL_LEAD_MS if _DELETES in properties and get_property(properties, _DELETES) else due_ms


def wake_time(due_ms: int, store_timestamp: int) -> int:
    """Return when to look at a message that was stored at ``store_timestamp`` and is due at ``due_ms``.

    This is when it is due or must be stored again; in the latter case at least a third of the window remains.
    """
    waits_ms = due_ms - store_timestamp
    if waits_ms < ROLL_WINDOW_MS:
        return due_ms
    if waits_ms - ROLL_WINDOW_MS < ROLL_WINDOW_MS // 3:
        return store_timestamp + ROLL_AFTER_MS[0]
    return store_timestamp + ROLL_AFTER_MS[1]


def stored_tags_code(levels: DelayLevels) -> TagsCodeOf:
    """Return the function that computes the tags code of a stored record.

    The code is the delivery time of a waiting message, and the hash of the tags of any other.
    """

    def tags_code_of(record: RecordCheck) -> int:
        if record.topic == SCHEDULE_TOPIC:
            try:
                level = requested_level(record.properties)
            except MessageIllegalError:
                level = 0
            if level > 0:
                return levels.delivery_time(level, record.store_timestamp)
        elif record.topic == TIMER_TOPIC:
            return wake_time(stored_time(record.properties), record.store_timestamp)
        return record.tags_code

    return tags_code_of


def _is_integer(value: bytes, max_digits: int) -> bool:
    found = _INTEGER.fullmatch(value)
    return found is not None and len(found[1]) <= max_digits


def _parse(part: str, text: str) -> int:
    number, unit = part[:-1], part[-1]
    if unit not in _UNIT_MS or not number.isascii() or not number.isdigit() or int(number) == 0:
        raise ConfigError(f"messageDelayLevel {text!r}: {part!r} is not a number with s, m, h or d")
    return int(number) * _UNIT_MS[unit]
