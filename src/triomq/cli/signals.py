"""SIGINT and SIGTERM: the first ends a command in order, the second at once."""

import signal
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Final

import trio

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def stop_signals() -> AbstractContextManager[AsyncIterator[int]]:
    """Receive the signals that end a program; SIGHUP too, unless it is ignored as under ``nohup``."""
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return trio.open_signal_receiver(*STOP_SIGNALS, *hangup)


def end_at_next_signal() -> None:
    """Let the next signal end the process at once, even if the loop hangs; call it when the first came."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
