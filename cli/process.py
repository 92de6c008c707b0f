"""Settings of the process: signals, open files, garbage collection."""

import gc
import logging
import resource
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Final

import trio

LOGGER: Final = logging.getLogger("triomq.cli.process")

_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
#: New objects before Python looks for garbage cycles.  A broker makes many short-lived objects and hardly any cycle:
#: with Python's 700 it would search several times in each step.
_GC_THRESHOLD: Final = 20_000
#: Then how many of these searches before one among all that was made since: of 60,000 objects each takes some 20 ms.
_GC_MIDDLE: Final = 3
_GC_ALL: Final = 130


def stop_signals() -> AbstractContextManager[AsyncIterator[int]]:
    """Receive SIGTERM, SIGINT and SIGHUP.

    SIGINT and SIGHUP stay ignored if they were ignored at the start, as shells do for background jobs of a script and
    ``nohup`` does: Ctrl-C in the terminal is not meant for them.
    """
    wanted = [number for number in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    return trio.open_signal_receiver(signal.SIGTERM, *wanted)


def end_at_next_signal() -> None:
    """Make the next signal end the process at once, even if the loop hangs; call it after the first."""
    for number in _STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def raise_open_files_limit() -> None:
    """Raise the limit of open files to the hard limit: each mapped file and each client needs some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as exc:
            LOGGER.info("limit of open files not raised limit=%d error=%s", soft, exc)


def settle_garbage_collector() -> None:
    """Exclude the objects that exist now, mostly modules, from garbage collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, _GC_MIDDLE, _GC_ALL)
