"""What the exit code of a command says; scripts depend on it, so no number ever changes its meaning."""

from enum import IntEnum
from typing import Final

SIGNAL_BASE: Final = 128
"""A client command that a signal ended gives this plus the signal's number, as shells count."""


class ExitCode(IntEnum):
    """Exit codes of all commands."""

    OK = 0
    FAILED = 1
    """A server refused, not everything was done, or a store cannot be opened."""
    USAGE = 2
    """A wrong option, name or setting, or an address that cannot be had: nothing was done."""
    UNREACHABLE = 3
    """No name server or broker answered."""
    INTERRUPTED = 130
    """Ctrl-C (SIGINT)."""
    OUTPUT_CLOSED = 141
    """Whoever read the output went away, as in ``triomq consume T | head -1``."""
    TERMINATED = 143
    """SIGTERM."""


EXIT_CODES_TEXT: Final = (
    "exit codes: 0 done; 1 failed or not all done; 2 wrong option, name or setting; 3 no server answered; "
    "130 Ctrl-C; 141 output closed; 143 SIGTERM (triomq broker: 0 after Ctrl-C and SIGTERM)"
)
