"""The exit codes of commands; scripts depend on them, so no code ever changes its meaning."""

from enum import IntEnum
from typing import Final

SIGNAL_BASE: Final = 128
"""A client command ended by a signal exits with this plus the signal's number, as in shells."""


class ExitCode(IntEnum):
    """Exit codes of all commands."""

    OK = 0
    FAILED = 1
    """A server refused, the work is incomplete, or a store cannot be opened."""
    USAGE = 2
    """A wrong option, name or setting, or an address that cannot be bound: nothing was done."""
    UNREACHABLE = 3
    """No name server or broker answered."""
    INTERRUPTED = 130
    """Ctrl-C (SIGINT)."""
    OUTPUT_CLOSED = 141
    """The reader closed the output, as in ``triomq consume T | head -1``."""
    TERMINATED = 143
    """SIGTERM."""


EXIT_CODES_TEXT: Final = (
    "exit codes: 0 done; 1 failed or not all done; 2 wrong option, name or setting; 3 no server answered; "
    "130 Ctrl-C; 141 output closed; 143 SIGTERM (triomq broker, namesrv, cluster: 0 after Ctrl-C and SIGTERM)"
)
