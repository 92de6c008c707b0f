"""Turns the options for starting and ending positions into offsets of queues.

Source: spark.md 4.1 (startingOffsets to endingTimestamp).
"""

from collections.abc import Callable, Mapping
from typing import Any

from triomq.protocol.errors import ConfigError
from triomq.protocol.message_queue import MessageQueue
from triomq.spark.options.options import Options
from triomq.spark.options.values import EARLIEST, EARLIEST_OFFSET, LATEST, LATEST_OFFSET
from triomq.spark.reading.discovery import QueueBounds
from triomq.spark.reading.offsets import Ranges

#: Returns the first offset stored at a time or later, or the queue's end.
FirstAt = Callable[[MessageQueue, QueueBounds, int], int]
AllBounds = Mapping[MessageQueue, QueueBounds]


def starting_offsets(options: Options, bounds: AllBounds, first_at: FirstAt, default: str) -> dict[MessageQueue, int]:
    """Return where each queue starts.

    Args:
        options: of a read.
        bounds: of the queues.
        first_at: finds an offset by time.
        default: ``earliest`` or ``latest``, if no option gives a position.

    Raises:
        ConfigError: a position names a queue that is not read, omits one, or lies outside its queue.
    """
    if (since_ms := options["startingTimestamp"]) is not None:
        return {queue: first_at(queue, found, since_ms) for queue, found in bounds.items()}
    return _offsets(options["startingOffsets"] or default, bounds, "startingOffsets")


def ending_offsets(options: Options, bounds: AllBounds, first_at: FirstAt) -> dict[MessageQueue, int]:
    """Return the exclusive end of each queue.

    Raises:
        ConfigError: as :func:`starting_offsets`.
    """
    if (until_ms := options["endingTimestamp"]) is not None:
        return {queue: first_at(queue, found, until_ms) for queue, found in bounds.items()}
    return _offsets(options["endingOffsets"] or LATEST, bounds, "endingOffsets")


def batch_ranges(options: Options, bounds: AllBounds, first_at: FirstAt) -> Ranges:
    """Return the ranges of a batch.

    Raises:
        ConfigError: as :func:`starting_offsets`, or a start lies after its end.
    """
    begins = starting_offsets(options, bounds, first_at, EARLIEST)
    ends = ending_offsets(options, bounds, first_at)
    for queue, begin in begins.items():
        if begin > ends[queue] and options.given("endingOffsets"):
            raise ConfigError(f"{queue}: starts at {begin}, after its end at {ends[queue]}")
    return {queue: (begin, max(begin, ends[queue])) for queue, begin in begins.items()}


def _offsets(position: Any, bounds: AllBounds, option: str) -> dict[MessageQueue, int]:
    if position == EARLIEST:
        return {queue: found.low for queue, found in bounds.items()}
    if position == LATEST:
        return {queue: found.high for queue, found in bounds.items()}
    _check_queues(position, bounds, option)
    return {queue: _offset(queue, wanted, bounds[queue], option) for queue, wanted in position.items()}


def _offset(queue: MessageQueue, wanted: int, bounds: QueueBounds, option: str) -> int:
    if wanted == EARLIEST_OFFSET:
        return bounds.low
    if wanted == LATEST_OFFSET:
        return bounds.high
    if not bounds.low <= wanted <= bounds.high:
        raise ConfigError(f"option '{option}': {queue} has the offsets {bounds.low} to {bounds.high}, not {wanted}")
    return wanted


def _check_queues(given: Mapping[MessageQueue, int], bounds: AllBounds, option: str) -> None:
    unknown = sorted(given.keys() - bounds.keys())
    if unknown:
        raise ConfigError(f"option '{option}': queue {unknown[0]} is not read; those that are: {_listed(bounds)}")
    missing = sorted(bounds.keys() - given.keys())
    if missing:
        raise ConfigError(
            f"option '{option}': queue {missing[0]} is missing; give all queues that are read, "
            f"-2 for the earliest and -1 for the latest offset: {_listed(bounds)}"
        )


def _listed(bounds: AllBounds) -> str:
    names = [str(queue) for queue in sorted(bounds)]
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
