"""Signals: the first SIGINT or SIGTERM ends a command in order, the second at once."""

import signal
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Final

import trio

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def stop_signals() -> AbstractContextManager[AsyncIterator[int]]:
    """Receive SIGTERM, SIGINT and SIGHUP.

    SIGINT and SIGHUP stay ignored if they were ignored at the start, as a shell does for a script's background jobs and
    ``nohup`` does: Ctrl-C in the terminal is not meant for them.
    """
    wanted = [number for number in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    return trio.open_signal_receiver(signal.SIGTERM, *wanted)


def end_at_next_signal() -> None:
    """Make the next signal end the process at once, even if the loop hangs; call it after the first."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
