"""Lifetimes: a nursery for background tasks that end with the block, and objects that live as long as one."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Self

import trio

from triomq.protocol.errors import ClientError


@asynccontextmanager
async def open_service_nursery() -> AsyncGenerator[trio.Nursery, None]:
    """Open a nursery whose tasks are cancelled when the block ends.

    One error, of the block or of a task, leaves as itself, not as an exception group of one; several leave as a
    group.
    """
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        errors = [error for error in _leaves(group) if not isinstance(error, trio.Cancelled)]
        if len(errors) != 1:
            raise
        _raise_as_it_is(errors[0])


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _raise_as_it_is(error: BaseException) -> None:
    """Raise without the group as its context, but with the context it had."""
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context
        del error, context  # no reference cycle through this frame


class OpenOnce(ABC):
    """An object that is used as ``async with`` and lives as long as the block, once."""

    _context: AbstractAsyncContextManager[None] | None = None

    @abstractmethod
    def _run(self) -> AbstractAsyncContextManager[None]:
        """Do what comes before the block, and after it: an ``asynccontextmanager`` method."""

    async def __aenter__(self) -> Self:
        if not trio.lowlevel.in_trio_task():
            raise ClientError(
                f"this {type(self).__name__} runs on trio; under asyncio use the one of triomq.client.asyncio, "
                "and without an event loop the one of triomq.client.sync"
            )
        if self._context is not None:
            raise ClientError(f"a {type(self).__name__} can be entered once only: make a new one")
        self._context = self._run()
        await self._context.__aenter__()
        return self

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Coroutine[Any, Any, bool | None]:
        assert self._context is not None
        return self._context.__aexit__(kind, error, traceback)
