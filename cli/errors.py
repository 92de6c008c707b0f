"""Errors as users see them: one line with a hint, and an exit code."""

from collections.abc import Iterator, Mapping
from typing import Final

from triomq.cli.arguments.values import escape_controls
from triomq.cli.exit_codes import ExitCode
from triomq.protocol import errors as e


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


_REMARK_HINTS: Final = {
    "message is forbidden": "see the permissions with triomq topic show TOPIC",
}
"""Parts of brokers' texts, and hints."""


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit code for an error that :func:`is_expected`."""
    for kind in type(error).__mro__:
        if kind in _EXIT_CODES:
            return _EXIT_CODES[kind]
    return ExitCode.FAILED


def is_expected(error: BaseException) -> bool:
    """Whether one line is enough for the user; any other error is a defect and needs its traceback."""
    return isinstance(error, e.TriomqError | OSError)


def one_line(error: BaseException) -> str:
    """Return the error's text on one line, with a hint; control characters from brokers are escaped."""
    text = escape_controls(" ".join(str(error).split())) or type(error).__name__
    hint = _HINTS.get(type(error)) or next((hint for part, hint in _REMARK_HINTS.items() if part in text), None)
    return f"{text}; {hint}" if hint else text


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of a group, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
