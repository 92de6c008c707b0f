"""The clients for callers that block: threads, scripts, Spark workers.  Same names, same arguments, ``with`` blocks.

::

    from triomq.client.sync import Producer

    with Producer("group", namesrv="127.0.0.1:9876") as producer:
        producer.send(Message("Topic", b"body"))

All of them share one background thread, which runs trio while at least one is open.  Each may be used by several
threads at once.  A call costs about 50 us more than in trio: send many messages with ``send_batch``.
"""

import os
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial, wraps
from queue import SimpleQueue
from typing import Any, ClassVar, Self, cast
from warnings import warn

from triomq.client import facades
from triomq.client.cluster.instance import ClientInstance as TrioClientInstance
from triomq.client.consumer.lite_pull import LitePullConsumer as TrioLitePullConsumer
from triomq.client.consumer.range_reader import RangeReader as TrioRangeReader
from triomq.client.facades import Blocking, Method, arguments_of, plain
from triomq.client.nursery import is_in_asyncio, stop_signals
from triomq.client.portal import acquire_portal, release_portal
from triomq.client.producer.transaction import Transaction, TransactionBlock, decision
from triomq.client.producer.transaction import TransactionProducer as TrioTransactionProducer
from triomq.protocol.record.message import Message


class _Blocking(Blocking):
    """Holds an asynchronous client open in the background thread."""

    @staticmethod
    def _wrap(method: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        """Make a method that runs the asynchronous one in the background thread and waits for it."""

        @wraps(method)
        def call(self: Blocking, /, *args: Any, **kwargs: Any) -> Any:
            return self._open_portal().call(method, self._target, *args, **kwargs)

        return call

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, *_error: object) -> None:
        portal, held = self._entered()
        self._portal = None
        if portal.process_id != os.getpid():
            return  # a fork: the parent's thread is not here
        try:
            portal.call(held.leave)
        finally:
            release_portal(portal)

    def _open(self) -> None:
        held = self._hold()
        if is_in_asyncio():
            warn(f"this {type(self).__name__} blocks the event loop; use triomq.client.asyncio", RuntimeWarning, 3)
        portal = acquire_portal()
        try:
            portal.call(held.enter, portal.nursery)
        except BaseException:
            release_portal(portal)
            raise
        self._held, self._portal = held, portal


class ClientInstance(_Blocking, facades.ClientInstanceFacade):
    """Connections for several clients: ``with ClientInstance(...) as shared``, then ``instance=shared`` for each."""

    def __enter__(self) -> TrioClientInstance:  # type: ignore[override]  # what the others take
        self._open()
        return cast(TrioClientInstance, self._target)


class Producer(_Blocking, facades.ProducerFacade):
    """See :class:`triomq.client.producer.producer.Producer`."""


class TransactionProducer(_Blocking, facades.TransactionProducerFacade):
    """See :class:`triomq.client.producer.transaction.TransactionProducer`; functions run in threads."""

    send = Method(TrioTransactionProducer.send)

    def transaction(self, message: Message) -> "_TransactionBlock":
        """Store a message, and commit it when the block ends, or roll it back if the block raises."""
        return _TransactionBlock(partial(self.begin, message), self.decide)


class _TransactionBlock(TransactionBlock):
    """The same for callers that block."""

    _how: ClassVar[str] = "with"

    def __enter__(self) -> Transaction:
        self._transaction = self._take()()
        return self._transaction

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if (state := decision(error)) is not None:
            self._decide(self._transaction, state)


class PushConsumer(_Blocking, facades.PushConsumerFacade):
    """See :class:`triomq.client.consumer.push.PushConsumer`; handlers that are plain functions run in threads."""

    def run(self) -> None:
        """Enter the consumer, and leave it in order at SIGINT or SIGTERM; see the trio class."""
        ended = SimpleQueue[None]()  # signal handlers may use it
        with ExitStack() as signals:
            signals.enter_context(stop_signals(lambda: ended.put(None)))
            with self:
                self._call_at_end(lambda: ended.put(None))
                ended.get()
                signals.close()

    def wait(self) -> None:
        """Block until Ctrl-C, or until the consumer fails, and raise its error then."""
        portal, held = self._entered()
        portal.call(held.wait)


class PullConsumer(_Blocking, facades.PullConsumerFacade):
    """See :class:`triomq.client.consumer.pull.PullConsumer`."""


class LitePullConsumer(_Blocking, facades.LitePullConsumerFacade):
    """See :class:`triomq.client.consumer.lite_pull.LitePullConsumer`."""

    poll = Method(TrioLitePullConsumer.poll)


class RangeReader(_Blocking):
    """See :class:`triomq.client.consumer.range_reader.RangeReader`; it pulls ahead while its caller computes."""

    @arguments_of(TrioRangeReader)
    def __init__(self) -> None: ...

    read = Method(TrioRangeReader.read)
    seek = plain(TrioRangeReader.seek)

    @property
    def position(self) -> int:
        """The offset up to which it was read."""
        return cast(TrioRangeReader, self._target).position


class Admin(_Blocking, facades.AdminFacade):
    """See :class:`triomq.client.admin.admin.Admin`."""
