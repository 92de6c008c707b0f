"""Who may see the dashboard: the one-time token or the password, sessions, form tokens, and headers of answers.

Without a password the token of the ready line opens one session; then the dashboard prints another one, for the next
browser.  A page of another site can
neither read the cookie nor send it (``SameSite=Strict``), and does not know the token in forms.
"""

import hashlib
import hmac
import ipaddress
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from triomq.dashboard.settings import Settings

if TYPE_CHECKING:
    from triomq.dashboard.watched import Watched

#: Sessions at one time; the one that was used longest ago makes room for the next.
MAX_SESSIONS: Final = 64
_IDLE_S: Final = 12 * 3600.0
_TOKEN_BYTES: Final = 32

HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@dataclass(slots=True)
class Session:
    """One browser that is signed in.

    Attributes:
        form_token: in each form, so that another site cannot send one.
        used_s: when it was last used.
        message: shown once, on the next page.
        account: access key of the visitor's account, ``None``: the dashboard's own view.
        watched: the cluster as that account sees it.
    """

    used_s: float
    form_token: str = field(default_factory=lambda: secrets.token_urlsafe(_TOKEN_BYTES))
    message: str | None = None
    account: str | None = None
    watched: "Watched | None" = None


class Gate:
    """Signs browsers in.

    Attributes:
        token: opens one session, and is then replaced by another; ``None``: there is a password.
        used: set when the token was used; each token has another event.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()
        self.token = None if settings.password is not None else secrets.token_urlsafe(_TOKEN_BYTES)
        self.used = trio.Event()

    def is_host_known(self, host: str) -> bool:
        """Whether a browser may use this name of the server.

        Without a password only addresses, ``localhost`` and the host of ``--listen``: a page of another site can give
        its own name our address.
        """
        if self._settings.password is not None:
            return True
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        name = name.removeprefix("[").removesuffix("]").lower()
        if name == "localhost" or name.endswith(".localhost"):
            return True
        if self._settings.listen is not None and name == self._settings.listen.host.lower():
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def accepts_token(self, token: str) -> bool:
        """Whether it is the one-time token, which is replaced by this."""
        if self.token is None or not hmac.compare_digest(token.encode(), self.token.encode()):
            return False
        self.token = secrets.token_urlsafe(_TOKEN_BYTES)
        self.used.set()
        self.used = trio.Event()
        return True

    def accepts_password(self, password: str) -> bool:
        """Whether it is the password."""
        expected = self._settings.password
        return expected is not None and hmac.compare_digest(password.encode(), expected.encode())

    def open_session(self) -> str:
        """Return the cookie of a new session."""
        now = self._clock()
        for key in [key for key, session in self._sessions.items() if now - session.used_s > _IDLE_S]:
            self._forget(key)
        while len(self._sessions) >= MAX_SESSIONS:
            self._forget(next(iter(self._sessions)))
        cookie = secrets.token_urlsafe(_TOKEN_BYTES)
        self._sessions[_digest(cookie)] = Session(now)
        return cookie

    def session(self, cookie: str) -> Session | None:
        """Return the session of a cookie, if there is one."""
        key, now = _digest(cookie), self._clock()
        session = self._sessions.get(key)
        if session is None:
            return None
        if now - session.used_s > _IDLE_S:
            self._forget(key)
            return None
        session.used_s = now
        self._sessions.move_to_end(key)
        return session

    def close_session(self, cookie: str) -> None:
        """Forget a session."""
        self._forget(_digest(cookie))

    def _forget(self, key: bytes) -> None:
        session = self._sessions.pop(key, None)
        if session is not None and session.watched is not None:
            session.watched.stop()


def is_form_token(session: Session, token: str) -> bool:
    """Whether a form has the token of its session."""
    return hmac.compare_digest(token.encode(), session.form_token.encode())


def _digest(cookie: str) -> bytes:
    """Return the key of a session: a lookup by it shows nothing of the cookie in its duration."""
    return hashlib.sha256(cookie.encode(errors="replace")).digest()
