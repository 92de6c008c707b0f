"""What the faces for callers outside trio share: a client of the portal's thread, and its class from the trio one.

Logic is written once, in the trio classes; a face has one line for each method.  See ``sync.py`` and ``asyncio.py``.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from triomq.client.facades.portal import Guest, Portal
from triomq.protocol.errors import ClientClosedError, ClientError

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A", bound=AbstractAsyncContextManager[object], covariant=True)


class Face(Generic[A]):
    """Holds a trio client open in the portal's thread."""

    _target: A
    _guest: Guest[object] | None = None
    _portal: Portal | None = None

    def _make(self, make: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Make the trio client."""
        self._target = make(*args, **kwargs)

    def _new_guest(self) -> Guest[object]:
        if self._guest is not None:
            raise ClientError(f"a {type(self).__name__} can be entered once only: make a new one")
        return Guest[object](self._target)

    def _entered(self) -> tuple[Portal, Guest[object]]:
        if self._portal is None or self._guest is None:
            raise ClientClosedError(f"the {type(self).__name__} is not open: use it inside its with block")
        return self._portal, self._guest

    def _open_portal(self) -> Portal:
        """Return the portal of a client that is open and works."""
        portal, guest = self._entered()
        guest.check()
        return portal


def arguments_of(
    make: Callable[P, A],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Face[A], P], None]]:
    """Give ``__init__`` the arguments of the trio class, which it makes."""

    def decorate(_init: Callable[..., None]) -> Callable[Concatenate[Face[A], P], None]:
        @wraps(make.__init__)  # for help() and editors
        def init(self: Face[A], /, *args: P.args, **kwargs: P.kwargs) -> None:
            self._make(make, args, kwargs)  # it stands for a method

        return init

    return decorate


def plain(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[Face[A], P], T]:
    """Make a method that runs a plain one in the portal's thread, between two steps of its tasks."""

    @wraps(method)
    def call(self: Face[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._open_portal().call_plain(method, self._target, *args, **kwargs)  # as above

    return call
