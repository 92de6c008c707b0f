"""The common part of the facades for callers outside trio, which hold a trio client in the portal's thread.

Logic is written once, in the trio classes; a facade has one line for each method.  See ``sync.py``, ``asyncio.py``.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import trio

from triomq.client.facades.portal import HeldContext, Portal
from triomq.client.nursery import wrong_block
from triomq.protocol.errors import ClientClosedError, ClientError

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A", bound=AbstractAsyncContextManager[object], covariant=True)


class Facade(Generic[A]):
    """Holds a trio client open in the portal's thread."""

    _target: A
    _held: HeldContext[object] | None = None
    _portal: Portal | None = None
    _library = ""

    def _make(self, make: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Make the trio client."""
        self._target = make(*args, **kwargs)

    def __enter__(self) -> Any:
        raise ClientError(wrong_block(self, self._library))

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None: ...  # else Python's error comes first

    async def __aenter__(self) -> Any:
        raise ClientError(wrong_block(self, self._library))

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None: ...

    def _hold(self) -> HeldContext[object]:
        if trio.lowlevel.in_trio_task():
            raise ClientError(wrong_block(self, self._library))
        if self._held is not None:
            raise ClientError(f"a {type(self).__name__} can be entered once only: make a new one")
        return HeldContext[object](self._target)

    def _entered(self) -> tuple[Portal, HeldContext[object]]:
        if self._portal is None or self._held is None:
            raise ClientClosedError(f"the {type(self).__name__} is not open: use it inside its with block")
        return self._portal, self._held

    def _call_at_end(self, notify: Callable[[], object]) -> None:
        """Call a function in the portal's thread when the client ends, by itself or because it is left."""
        portal, held = self._entered()
        portal.submit(held.wait).future.add_done_callback(lambda _: notify())

    def _open_portal(self) -> Portal:
        """Return the portal of a client that is open and has not failed."""
        portal, held = self._entered()
        held.check()
        return portal


def arguments_of(
    make: Callable[P, A],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Facade[A], P], None]]:
    """Give ``__init__`` the arguments of the trio class, which it makes."""

    def decorate(_init: Callable[..., None]) -> Callable[Concatenate[Facade[A], P], None]:
        @wraps(make.__init__)  # for help() and editors
        def init(self: Facade[A], /, *args: P.args, **kwargs: P.kwargs) -> None:
            self._make(make, args, kwargs)  # self is the facade

        return init

    return decorate


def plain(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[Facade[A], P], T]:
    """Make a method that runs a plain one in the portal's thread, between two steps of its tasks."""

    @wraps(method)
    def call(self: Facade[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._open_portal().call_plain(method, self._target, *args, **kwargs)

    return call
