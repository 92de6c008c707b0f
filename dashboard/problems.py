"""Errors as pages show them: a title, the reason, what to do.  The one place that knows."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from triomq.client.admin.broker_answers import BrokerAnswer
from triomq.dashboard.view import BadRequestError, NoRightError, NotFoundError, is_about_account
from triomq.protocol import errors as e
from triomq.protocol.wire.signing import names_no_account


class Problem(NamedTuple):
    """An error page.

    Attributes:
        status: of HTTP.
        title: the heading.
        text: the reason.
        advice: what to do.
        wants_account: whether another account may help.
    """

    status: int
    title: str
    text: str
    advice: str = ""
    wants_account: bool = False


class TooSlowError(e.TriomqError):
    """A page is not there in time."""


READ_ONLY: Final = Problem(
    403,
    "This dashboard is read-only",
    "It was started with --read-only and refuses every change.",
    "Use the command line, or start a dashboard without this option.",
)
OLD_FORM: Final = Problem(
    403,
    "The form is out of date",
    "It does not belong to this session: you signed in again, or another site sent it. Nothing was changed.",
    "Go back, reload the page, and send it again.",
)
TOO_LONG: Final = Problem(413, "The form is too long", "Nothing was changed.", "Send less at once.")
NO_PAGE: Final = Problem(404, "There is no such page", "The address is wrong, or from another version of triomq.")
DEFECT: Final = Problem(
    500,
    "The dashboard failed",
    "This is a defect of the dashboard; its log has the details.",
    "Please report it with the lines of the log.",
)
_START: Final = "Start it if it is down; otherwise open its port, or let it advertise an address that is reachable."


#: The page of each kind of error without its text; the first that fits.
_KINDS: Final[tuple[tuple[tuple[type[BaseException], ...], Problem], ...]] = (
    (
        (NotFoundError, e.NoRouteError, e.TopicNotExistError, e.QueryNotFoundError, e.SubscriptionGroupNotExistError),
        Problem(404, "Not found", "", "It was deleted, or its name is written differently."),
    ),
    (
        (e.NameServerError,),
        Problem(503, "No name server answers", "", "Start it, or start the dashboard with the right --namesrv."),
    ),
    (
        (BadRequestError, e.ConfigError, e.IllegalNameError, e.MessageIllegalError),
        Problem(400, "This cannot be done", ""),
    ),
    ((e.SubscriptionParseError,), Problem(400, "The filter cannot be read", "")),
    (
        (e.RequestCodeNotSupportedError,),
        Problem(501, "This broker cannot do that", "", "It needs a newer version of the broker."),
    ),
    ((e.BrokerResponseError,), Problem(502, "The broker refuses", "")),
    ((e.TriomqError,), Problem(502, "This did not work", "")),
)


def problem_of(error: BaseException, silent: Sequence[BrokerAnswer]) -> Problem | None:
    """Return the page for an error; ``None``: it is a defect.

    Args:
        error: of a handler.
        silent: the brokers that do not answer.
    """
    leaves = list(e.leaves(error))
    if not all(isinstance(leaf, e.TriomqError) for leaf in leaves):
        return None
    found = leaves[0]
    text = str(found)
    if isinstance(found, NoRightError | e.NoPermissionError) or _is_about_account(found):
        if names_no_account(text):
            return Problem(403, "The brokers want an account", text, wants_account=True)
        advice = "Sign in with an account that has the right; triomq acl check shows which has it."
        return Problem(403, "The account has no right to do this", text, advice, wants_account=True)
    if isinstance(found, TooSlowError | e.ConnectError | e.ConnectionLostError | e.RequestTimeoutError):
        names = ", ".join(f"{broker.name} at {broker.address}" for broker in silent)
        if names:
            return Problem(504, "A broker does not answer", f"{names} is silent: {text}", _START)
        return Problem(504, "A broker does not answer in time", text, f"Try again. {_START}")
    if isinstance(found, e.NoBrokerError) or "knows no broker" in text:
        return Problem(503, "A broker is missing", text, _START)
    return next((problem._replace(text=text) for kinds, problem in _KINDS if isinstance(found, kinds)), None)


def _is_about_account(error: BaseException) -> bool:
    return isinstance(error, e.BrokerResponseError) and is_about_account(error.remark)
