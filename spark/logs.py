"""Shows warnings of the processes that Spark starts, where logging is not configured.

Warnings, such as messages lost with ``failOnDataLoss=false`` or brokers that do not answer, go to stderr, which is in
the log of the executor or driver.  A program that configures logging itself keeps its configuration.  Repeated lines
are limited, but each queue that lost messages gets a line.
"""

import logging
from typing import Final

from triomq.common.logs import LineFormatter, RepeatFilter
from triomq.spark.reading import loss

_LOGGER: Final = logging.getLogger("triomq")


def show_warnings() -> None:
    """Write warnings to stderr from now on, unless logging is configured; for processes that Spark starts."""
    if _LOGGER.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(LineFormatter())
    repeats = RepeatFilter()
    handler.addFilter(lambda record: record.name == loss.LOGGER.name or repeats.filter(record))
    _LOGGER.addHandler(handler)
