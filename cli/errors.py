"""Errors as users see them: one line with a hint, and an exit code."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from triomq.cli.output import escape_controls
from triomq.protocol import errors as e

SIGNAL_BASE: Final = 128
"""A client command ended by a signal exits with this plus the signal's number, as in shells."""


class ExitCode(IntEnum):
    """Exit codes of all commands; scripts depend on them, so no code ever changes its meaning."""

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


class UsageError(e.ConfigError):
    """Options that do not fit together, or unreadable input."""


class IncompleteError(e.TriomqError):
    """A command ended before it was done."""


_EXIT_CODES: Final[Mapping[type[BaseException], ExitCode]] = {
    e.ConfigError: ExitCode.USAGE,
    e.IllegalNameError: ExitCode.USAGE,
    e.SubscriptionParseError: ExitCode.USAGE,
    e.MessageIllegalError: ExitCode.USAGE,
    e.ConnectError: ExitCode.UNREACHABLE,
    e.ConnectionLostError: ExitCode.UNREACHABLE,
    e.RequestTimeoutError: ExitCode.UNREACHABLE,
    e.NameServerError: ExitCode.UNREACHABLE,
}

_HINTS: Final[Mapping[type[BaseException], str]] = {
    e.TopicNotExistError: "create it: triomq topic create TOPIC",
    e.SystemBusyError: "send more slowly, see --rate",
    e.ServiceNotAvailableError: "look at the broker's log; often its disk is full",
    e.SubscriptionGroupNotExistError: "the broker does not create groups by itself: see triomq group list",
    e.RequestCodeNotSupportedError: "this server cannot do that; is it a broker of RocketMQ 4.9 or newer?",
}


_REMARK_HINTS: Final = {"message is forbidden": "see the permissions with triomq topic show TOPIC"}
"""Parts of brokers' texts, and hints."""


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit code for an error whose text is enough for the user."""
    for kind in type(error).__mro__:
        if kind in _EXIT_CODES:
            return _EXIT_CODES[kind]
    return ExitCode.FAILED


def one_line(error: BaseException) -> str:
    """Return the error's text on one line, with a hint; control characters from brokers are escaped."""
    text = escape_controls(" ".join(str(error).split())) or type(error).__name__
    hint = _HINTS.get(type(error)) or next((hint for part, hint in _REMARK_HINTS.items() if part in text), None)
    return f"{text}; {hint}" if hint else text
