"""Warnings of the processes that Spark starts: nobody sets up logging there, so they would be lost.

What is lost with ``failOnDataLoss=false``, which broker is away: such lines go to stderr, which is in the log of the
executor, or of the driver for the processes beside it.  A program that sets up logging itself keeps what it has.
Floods are cut short, but each queue that lost messages is told: there is one line for it.
"""

import logging
from typing import Final

from triomq.logs import LineFormatter, RepeatFilter
from triomq.spark.reading import loss

_LOGGER: Final = logging.getLogger("triomq")


def show_warnings() -> None:
    """Write warnings to stderr from now on, unless somebody takes them already; for processes of Spark's."""
    if _LOGGER.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(LineFormatter())
    repeats = RepeatFilter()
    handler.addFilter(lambda record: record.name == loss.LOGGER.name or repeats.filter(record))
    _LOGGER.addHandler(handler)
