"""The account of a visitor: for brokers with accounts, instead of the dashboard's own view.

Access key and secret stay in the memory of the dashboard, for this session alone.
"""

from typing import Any, Final

from triomq.dashboard.formats import to
from triomq.dashboard.view import Change, Done, Page, View
from triomq.protocol.wire.signing import Credentials


async def account(view: View) -> dict[str, Any]:
    """Return the account of the session."""
    own = view.settings.client.credentials
    account = view.session.account
    title = "Sign in to the brokers" if account is None else f"Signed in as {account}"
    return {"title": title, "account": account, "own": None if own is None else own.access_key}


async def sign_in(view: View) -> Done:
    """Use an account from now on, once a broker has accepted it."""
    key = view.required("access_key").strip()
    watched = await view.accounts.open(Credentials(key, view.required("secret_key")))
    _leave(view)
    view.session.watched, view.session.account = watched, key
    return Done(f"Signed in as {key}.", to(""))


async def sign_out(view: View) -> Done:
    """Return to the dashboard's own view."""
    _leave(view)
    return Done("The account is signed out, and its secret is forgotten.", to("account"))


def _leave(view: View) -> None:
    if view.session.watched is not None:
        view.session.watched.stop()
    view.session.watched = view.session.account = None


PAGES: Final = (Page("account", "Account", account, "account.html"),)
CHANGES: Final = (
    Change("account-sign-in", "Sign in with an account", sign_in, is_safe=True),
    Change("account-sign-out", "Sign out the account", sign_out, is_safe=True),
)
