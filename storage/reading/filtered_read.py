"""Reading the messages that a filter on properties matches: a plain read, of which some records are kept.

A read looks at so many messages that other clients do not wait for it, whether any of them match or not.
"""

from typing import Final

from triomq.protocol.filters.filter_types import MessageFilter
from triomq.protocol.filters.sql_filter import SqlFilter
from triomq.protocol.record.record import iter_properties
from triomq.storage.config import StoreConfig
from triomq.storage.reading.get_message import GetMessageResult, GetMessageStatus

_MAX_UNITS_LOOKED_AT: Final = 4_000  # about 1 ms
_MAX_LOOKED_AT: Final = 400
_MAX_PARTS_EVALUATED: Final = 4_000  # about 2 ms
_MAX_BYTES_LOOKED_AT: Final = 4 * 1024 * 1024

Scan = tuple[int, frozenset[int] | None, int | None]


def scan_for(message_filter: MessageFilter, max_msg_nums: int, max_bytes: int | None) -> Scan:
    """Return what the plain read takes: number of messages, tag codes and bytes.

    Where no tag matches, a read ends after as many units as messages are wanted, but at least some hundred.
    """
    if isinstance(message_filter, SqlFilter):
        return max(min(_MAX_LOOKED_AT, _MAX_PARTS_EVALUATED // message_filter.size), 1), None, _MAX_BYTES_LOOKED_AT
    return min(max_msg_nums, _MAX_UNITS_LOOKED_AT), message_filter.codes, max_bytes


def choose(
    found: GetMessageResult, sql: SqlFilter, config: StoreConfig, max_msg_nums: int, max_bytes: int | None
) -> GetMessageResult:
    """Return of a plain read what matches, up to the limits of a usual read."""
    most, room = config.transfer_limits(max_bytes)
    most = min(max_msg_nums, most)
    next_begin_offset = found.next_begin_offset
    chosen: list[memoryview] = []
    count = total = 0
    matches = sql.matches
    records = ((buffer, record) for buffer in found.buffers for record in iter_properties(buffer) if matches(record[3]))
    for buffer, (start, end, queue_offset, _) in records:
        size = end - start
        if count >= most or (count and total + size > room):
            next_begin_offset = queue_offset
            break
        chosen.append(buffer[start:end])
        count += 1
        total += size
    status = GetMessageStatus.FOUND if count else GetMessageStatus.NO_MATCHED_MESSAGE
    return GetMessageResult(status, next_begin_offset, found.min_offset, found.max_offset, chosen, count, total)
