"""The clients for asyncio.  Same names, same arguments, ``async with`` blocks.

::

    from triomq.client.asyncio import Producer

    async with Producer("group", namesrv="127.0.0.1:9876") as producer:
        await producer.send(Message("Topic", b"body"))

They run on trio in the background thread of ``triomq.client.sync``; calls and results cross over (``portal.py``).
Coroutine handlers run as tasks of the loop in which the consumer was entered, plain functions in worker threads.
A thread is used instead of trio's guest mode in the caller's loop, because a coroutine that blocks the loop for
minutes would stop heartbeats, offset commits and lock renewals, and the group would give its queues to others.
Several loops may share the thread and its connections.  The price is two thread switches per call, and per message of
an ``on_message`` coroutine, about 0.1 ms: use ``send_batch``, ``on_messages`` and ``poll``.
A task that is cancelled during a call cancels the call in trio and continues once that has ended.  If a member stops
while a coroutine handler runs, the handler's task is cancelled.
"""

import asyncio
import contextvars
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import ExitStack, suppress
from functools import partial, wraps
from time import perf_counter
from typing import Any, ClassVar, Final, Self, cast

import trio

from triomq.client import facades
from triomq.client.cluster.instance import ClientInstance as TrioClientInstance
from triomq.client.consumer.lite_pull import check_wait
from triomq.client.consumer.processing.worker_pool import BLOCKED_S
from triomq.client.facades import Awaiting
from triomq.client.nursery import is_async, stop_signals
from triomq.client.portal import Call, HeldContext, T, acquire_portal, release_portal
from triomq.client.producer.transaction import Execute, Transaction, TransactionBlock
from triomq.client.producer.transaction import TransactionProducer as TrioTransactionProducer
from triomq.protocol.errors import ClientError
from triomq.protocol.record.message import Message, MessageExt

LOGGER: Final = logging.getLogger("triomq.client.consumer.handler")

#: How long a handler whose task was cancelled may take to end; after that its loop counts as dead.
_HANDLER_END_S: Final = 1.0


async def _result_of(call: Call[T]) -> T:
    """Wait for a call in the portal's thread; a cancellation cancels it, and waits until it has ended."""
    future = asyncio.wrap_future(call.future)
    try:
        await asyncio.wait([future])
    except asyncio.CancelledError:
        call.cancel()
        while not future.done():
            with suppress(asyncio.CancelledError):  # one is enough
                await asyncio.wait([future])  # noqa: ASYNC102  # asyncio cancels nothing implicitly
        future.exception()  # seen
        raise
    return future.result()


class _Awaiting(Awaiting):
    """Holds a trio client open in the background thread."""

    _library = "asyncio"

    @staticmethod
    def _wrap(method: Callable[..., Awaitable[Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
        """Make a coroutine function that runs the one of trio in the background thread."""

        @wraps(method)
        async def call(self: Awaiting, /, *args: Any, **kwargs: Any) -> Any:
            return await _result_of(self._open_portal().submit(method, self._target, *args, **kwargs))

        return call

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_error: object) -> None:
        portal, held = self._entered()
        self._portal = None
        if portal.process_id != os.getpid():
            return  # a fork: the parent's thread is not here
        try:
            await _result_of(portal.submit(held.leave))  # noqa: ASYNC102  # asyncio
        finally:
            await asyncio.to_thread(release_portal, portal)  # noqa: ASYNC102  # done even if this is cancelled

    async def _open(self) -> None:
        held = self._hold()
        portal = acquire_portal()
        try:
            await _result_of(portal.submit(held.enter, portal.nursery))
        except BaseException:
            await asyncio.to_thread(release_portal, portal)  # noqa: ASYNC102  # likewise
            raise
        self._held, self._portal = held, portal


class _Watched:
    """Awaits a call of a handler, and warns if it keeps the loop from running anything else."""

    def __init__(self, handler: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._handler = handler
        self._steps = handler(*arguments).__await__()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self  # type: ignore[return-value]  # it has what ``await`` calls of a generator

    def __next__(self) -> Any:
        return self._timed(self._steps.__next__)

    def throw(self, *error: Any) -> Any:
        """Raise an error in the handler, for example because its task was cancelled."""
        return self._timed(self._steps.throw, *error)

    def close(self) -> None:
        """End the handler where it is."""
        self._steps.close()

    def _timed(self, step: Callable[..., Any], *arguments: Any) -> Any:
        began = perf_counter()
        try:
            return step(*arguments)
        finally:
            if (blocked_s := perf_counter() - began) > BLOCKED_S:
                LOGGER.warning(
                    "handler blocked the event loop: nothing else could run for %.1f s; call blocking code by "
                    "asyncio.to_thread, or use a plain function as handler, which runs in a thread handler=%s",
                    blocked_s,
                    getattr(self._handler, "__qualname__", self._handler),
                )


class ClientInstance(_Awaiting, facades.ClientInstanceFacade):
    """Connections for several clients: ``async with ClientInstance(...) as shared``, then ``instance=shared``."""

    async def __aenter__(self) -> TrioClientInstance:  # type: ignore[override]  # what the others take
        await self._open()
        return cast(TrioClientInstance, self._target)


class Producer(_Awaiting, facades.ProducerFacade):
    """See :class:`triomq.client.producer.producer.Producer`."""


class _Homed(_Awaiting):
    """Runs the user's coroutine functions in the loop in which it was entered."""

    _functions: ClassVar[tuple[str, ...]]
    _loop: asyncio.AbstractEventLoop

    def _make(self, make: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        functions = {name: self._homed(kwargs[name]) for name in self._functions if name in kwargs}
        super()._make(make, args, {**kwargs, **functions})

    def _hold(self) -> HeldContext[object]:
        held = super()._hold()
        self._loop = asyncio.get_running_loop()
        return held

    def _homed(self, handler: Any) -> Any:
        """Return a trio handler that runs an asyncio coroutine function in the loop; other handlers as they are."""
        if not (callable(handler) and is_async(handler)):
            return handler

        @wraps(handler)
        async def handle(*args: Any) -> Any:
            token, ended = trio.lowlevel.current_trio_token(), trio.Event()
            tasks: list[asyncio.Task[Any]] = []

            def end(_task: asyncio.Task[Any]) -> None:
                with suppress(trio.RunFinishedError):
                    token.run_sync_soon(ended.set)

            async def call() -> Any:
                return await _Watched(handler, args)  # wrong arguments raise here, not in the loop

            context = contextvars.copy_context()  # of the task that entered the consumer, and of this call

            def start() -> None:
                tasks.append(self._loop.create_task(call(), context=context))
                tasks[0].add_done_callback(end)

            self._loop.call_soon_threadsafe(start)
            try:
                await ended.wait()
            except trio.Cancelled:
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())
                with trio.move_on_after(_HANDLER_END_S, shield=True):
                    await ended.wait()
                raise
            if tasks[0].cancelled():
                raise ClientError("the handler's task was cancelled")
            return tasks[0].result()

        return handle


class TransactionProducer(_Homed, facades.TransactionProducerFacade):
    """See :class:`triomq.client.producer.transaction.TransactionProducer`; coroutines run in the caller's loop."""

    _functions: ClassVar[tuple[str, ...]] = ("check",)

    async def send(self, message: Message, execute: Execute) -> Transaction:
        """Store a message, run the local transaction, and send its result to the broker."""
        target = cast(TrioTransactionProducer, self._target)
        return await _result_of(self._open_portal().submit(target.send, message, self._homed(execute)))

    def transaction(self, message: Message) -> TransactionBlock:
        """Store a message, and commit it when the block ends, or roll it back if the block raises."""
        return TransactionBlock(partial(self.begin, message), self.decide)


class PushConsumer(_Homed, facades.PushConsumerFacade):
    """See :class:`triomq.client.consumer.push.PushConsumer`; coroutine handlers run in the caller's loop."""

    _functions: ClassVar[tuple[str, ...]] = ("on_message", "on_messages")

    async def run(self) -> None:
        """Enter the consumer, and leave it in order at SIGINT or SIGTERM; see the trio class."""
        stop = asyncio.Event()
        notify = partial(asyncio.get_running_loop().call_soon_threadsafe, stop.set)
        with ExitStack() as signals:
            signals.enter_context(stop_signals(notify))
            async with self:
                self._call_at_end(notify)
                await stop.wait()
                signals.close()

    async def wait(self) -> None:
        """Wait until the consumer fails, and raise its error then."""
        portal, held = self._entered()
        await _result_of(portal.submit(held.wait))


class PullConsumer(_Awaiting, facades.PullConsumerFacade):
    """See :class:`triomq.client.consumer.pull.PullConsumer`."""


class LitePullConsumer(_Awaiting, facades.LitePullConsumerFacade):
    """See :class:`triomq.client.consumer.lite_pull.LitePullConsumer`."""

    async def poll(self, wait_s: float = 5.0) -> list[MessageExt]:
        """Return the messages of one pull; none if none arrived in time.  See the trio class.

        A call that is cancelled has taken nothing: messages are taken by ``poll_nowait`` here, between two steps
        of the caller's loop, so a cancellation cannot come between the taking and the return.
        """
        check_wait(wait_s)
        await asyncio.sleep(0)
        messages = self.poll_nowait()
        if not messages and wait_s:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    while not messages:
                        await self.wait_messages()
                        messages = self.poll_nowait()
        return messages


class Admin(_Awaiting, facades.AdminFacade):
    """See :class:`triomq.client.admin.admin.Admin`."""
