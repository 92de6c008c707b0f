"""Units in the place of lost messages, which neither our reader nor RocketMQ's takes for messages.

A blank unit does for that, but not before an intact message in the commit log's very first file.  RocketMQ takes a
blank unit for one of a deleted file, that with offset 0, and goes on with the file behind it: up to 800 intact messages
are passed by with each blank unit.  There a lost unit names the record of the next intact one instead.  RocketMQ then
delivers that one several times to those who want all tags; we know such units by their tags code and deliver nothing.

Farther ahead of the intact message than one read looks, blank ones do no harm there either.  And they do none in the
queues of messages that wait: RocketMQ passes by a blank one alone, and would deliver what is named twice twice.
Source: DefaultMessageStore.java, getMessage; ScheduleMessageService.java; store.md 3.5, 7.1.
"""

from typing import Final

from triomq.protocol.record.consume_queue_unit import BLANK_UNIT, REPEATED_CODE, UNIT
from triomq.storage.delays import WAITING_TOPICS

_MOST_IN_ONE_READ: Final = 1024  # 800, but as many as a client asks for, and Java's asks for no more than this


def lost_units(count: int, topic: str, log_file_size: int, physical_offset: int, size: int) -> bytes:
    """Return the packed units of ``count`` lost messages.

    Args:
        count: how many follow one another.
        topic: whose queue it is.
        log_file_size: of each file of the commit log.
        physical_offset, size: the record of the intact message behind them.
    """
    repeated = 0
    if physical_offset < log_file_size and topic not in WAITING_TOPICS:
        repeated = min(count, _MOST_IN_ONE_READ)
    return BLANK_UNIT * (count - repeated) + UNIT.pack(physical_offset, size, REPEATED_CODE) * repeated
