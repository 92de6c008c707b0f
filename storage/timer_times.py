"""When a message that asks for a time of its own is due.

The properties are those of RocketMQ 5.x: ``TIMER_DELAY_SEC``, else ``TIMER_DELAY_MS``, else ``TIMER_DELIVER_MS`` asks;
``TIMER_OUT_MS`` is the answer that the broker stores with the message.

Source: RocketMQ 5.5.0 HookUtils.java, transformTimerMessage; TimerMessageStore.java, doEnqueue.
"""

import re
from typing import Final

from triomq.protocol.errors import MessageIllegalError
from triomq.protocol.record.properties import PropertyName, get_property, remove_property

"""Where such messages wait, all of them in queue 0."""

OUT_MS: Final = PropertyName.TIMER_OUT_MILLIS.encode()
_DELAY_S: Final = PropertyName.TIMER_DELAY_SECONDS.encode()
_DELAY_MS: Final = PropertyName.TIMER_DELAY_MILLIS.encode()
_DELIVER_MS: Final = PropertyName.TIMER_DELIVER_MILLIS.encode()
_REQUESTS: Final = (_DELAY_S, _DELAY_MS, _DELIVER_MS)
_INTEGER: Final = re.compile(rb"[+-]?[0-9]{1,18}")

ROLL_WINDOW_MS: Final = 2 * 86_400_000
"""A message that waits longer is stored anew meanwhile, so that retention does not delete it.  timerRollWindowSlot"""


ROLL_AFTER_MS: Final = (ROLL_WINDOW_MS // 2, ROLL_WINDOW_MS)
"""So long after it was stored a message is stored anew; one that was not may wait as long, by chance."""


def requested_time(properties: bytes, now_ms: int) -> int | None:
    """Return when a message asks to be delivered, ms, perhaps in the past; ``None`` if it does not.

    A message that has waited already does not ask again.

    Raises:
        MessageIllegalError: what it asks for is no number.
    """
    for name in _REQUESTS:
        value = get_property(properties, name)
        if value is not None:
            break
    else:
        return None
    if get_property(properties, OUT_MS) is not None:
        return None
    if _INTEGER.fullmatch(value) is None:
        raise MessageIllegalError(f"{name.decode()} {value[:20]!r} is no number")
    if name == _DELIVER_MS:
        return int(value)
    return now_ms + int(value) * (1000 if name == _DELAY_S else 1)


def without_request(properties: bytes) -> bytes:
    """Return the properties without a request for a time."""
    for name in _REQUESTS:
        properties = remove_property(properties, name)
    return properties


def stored_time(properties: bytes) -> int:
    """Return when a waiting message is due by its properties, ms; 0, which is long ago, if they do not tell."""
    value = get_property(properties, OUT_MS)
    return int(value) if value is not None and _INTEGER.fullmatch(value) else 0


def wake_time(due_ms: int, store_timestamp: int) -> int:
    """Return when a message stored at ``store_timestamp`` and due at ``due_ms`` must be looked at, ms.

    That is when it is due, or when it must be stored anew; then at least a third of the window is left to it.
    """
    waits_ms = due_ms - store_timestamp
    if waits_ms < ROLL_WINDOW_MS:
        return due_ms
    if waits_ms - ROLL_WINDOW_MS < ROLL_WINDOW_MS // 3:
        return store_timestamp + ROLL_AFTER_MS[0]
    return store_timestamp + ROLL_AFTER_MS[1]
