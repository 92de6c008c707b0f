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
from types import TracebackType
from typing import ClassVar, Concatenate, Self
from warnings import warn

from triomq.client.admin.admin import Admin as TrioAdmin
from triomq.client.cluster.instance import ClientInstance as TrioClientInstance
from triomq.client.consumer.lite_pull import LitePullConsumer as TrioLitePullConsumer
from triomq.client.consumer.pull import PullConsumer as TrioPullConsumer
from triomq.client.consumer.pull import QueueQueries as TrioQueueQueries
from triomq.client.consumer.push import PushConsumer as TrioPushConsumer
from triomq.client.consumer.range_reader import RangeReader as TrioRangeReader
from triomq.client.nursery import is_in_asyncio, stop_signals
from triomq.client.portal import A, Facade, P, T, acquire_portal, arguments_of, plain, release_portal
from triomq.client.producer.producer import Producer as TrioProducer
from triomq.client.producer.transaction import Transaction, TransactionBlock, decision
from triomq.client.producer.transaction import TransactionProducer as TrioTransactionProducer
from triomq.protocol.record.message import Message


class _Blocking(Facade[A]):
    """Holds an asynchronous client open in the background thread."""

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
            portal.call(portal.open, held)
        except BaseException:
            release_portal(portal)
            raise
        self._held, self._portal = held, portal


def _blocking(method: Callable[Concatenate[A, P], Awaitable[T]]) -> Callable[Concatenate[_Blocking[A], P], T]:
    """Make a method that runs the asynchronous one in the background thread and waits for it."""

    @wraps(method)
    def call(self: _Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._open_portal().call(method, self._target, *args, **kwargs)

    return call


class ClientInstance(_Blocking[TrioClientInstance]):
    """Connections for several clients: ``with ClientInstance(...) as shared``, then ``instance=shared`` for each."""

    @arguments_of(TrioClientInstance)
    def __init__(self) -> None: ...

    def __enter__(self) -> TrioClientInstance:  # type: ignore[override]  # what the others take
        self._open()
        return self._target


class Producer(_Blocking[TrioProducer]):
    """See :class:`triomq.client.producer.producer.Producer`."""

    @arguments_of(TrioProducer)
    def __init__(self) -> None: ...

    send = _blocking(TrioProducer.send)
    send_batch = _blocking(TrioProducer.send_batch)
    send_encoded_batch = _blocking(TrioProducer.send_encoded_batch)
    send_oneway = _blocking(TrioProducer.send_oneway)
    request = _blocking(TrioProducer.request)
    recall = _blocking(TrioProducer.recall)
    publish_queues = _blocking(TrioProducer.publish_queues)


class TransactionProducer(_Blocking[TrioTransactionProducer]):
    """See :class:`triomq.client.producer.transaction.TransactionProducer`; functions run in threads."""

    @arguments_of(TrioTransactionProducer)
    def __init__(self) -> None: ...

    send = _blocking(TrioTransactionProducer.send)
    begin = _blocking(TrioTransactionProducer.begin)
    decide = _blocking(TrioTransactionProducer.decide)

    def transaction(self, message: Message) -> "_TransactionBlock":
        """Store a message, and commit it when the block ends, or roll it back if the block raises."""
        return _TransactionBlock(partial(self.begin, message), self.decide)


class _TransactionBlock(TransactionBlock):
    """The same for callers that block."""

    _how: ClassVar[str] = "with"

    def __enter__(self) -> Transaction:
        self._transaction = self._take()()
        return self._transaction

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if (state := decision(error)) is not None:
            self._decide(self._transaction, state)


class PushConsumer(_Blocking[TrioPushConsumer]):
    """See :class:`triomq.client.consumer.push.PushConsumer`; handlers that are plain functions run in threads."""

    @arguments_of(TrioPushConsumer)
    def __init__(self) -> None: ...

    wait_assigned = _blocking(TrioPushConsumer.wait_assigned)
    subscribe = _blocking(TrioPushConsumer.subscribe)
    unsubscribe = _blocking(TrioPushConsumer.unsubscribe)
    suspend = plain(TrioPushConsumer.suspend)
    resume = plain(TrioPushConsumer.resume)
    resize = plain(TrioPushConsumer.resize)
    statistics = plain(TrioPushConsumer.statistics)

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


class _QueueQueries(_Blocking[A]):
    """See :class:`triomq.client.consumer.pull.QueueQueries`."""

    queues = _blocking(TrioQueueQueries.queues)
    bounds = _blocking(TrioQueueQueries.bounds)
    wait_queues_changed = _blocking(TrioQueueQueries.wait_queues_changed)
    min_offset = _blocking(TrioQueueQueries.min_offset)
    max_offset = _blocking(TrioQueueQueries.max_offset)
    search_offset = _blocking(TrioQueueQueries.search_offset)
    offset_for_timestamp = _blocking(TrioQueueQueries.offset_for_timestamp)
    earliest_store_time = _blocking(TrioQueueQueries.earliest_store_time)


class PullConsumer(_QueueQueries[TrioPullConsumer]):
    """See :class:`triomq.client.consumer.pull.PullConsumer`."""

    @arguments_of(TrioPullConsumer)
    def __init__(self) -> None: ...

    pull = _blocking(TrioPullConsumer.pull)
    committed = _blocking(TrioPullConsumer.committed)
    commit = _blocking(TrioPullConsumer.commit)
    commit_oneway = _blocking(TrioPullConsumer.commit_oneway)
    send_back = _blocking(TrioPullConsumer.send_back)


class LitePullConsumer(_QueueQueries[TrioLitePullConsumer]):
    """See :class:`triomq.client.consumer.lite_pull.LitePullConsumer`."""

    @arguments_of(TrioLitePullConsumer)
    def __init__(self) -> None: ...

    subscribe = _blocking(TrioLitePullConsumer.subscribe)
    unsubscribe = _blocking(TrioLitePullConsumer.unsubscribe)
    assign = _blocking(TrioLitePullConsumer.assign)
    wait_assigned = _blocking(TrioLitePullConsumer.wait_assigned)
    assignment = plain(TrioLitePullConsumer.assignment)
    wait_assignment_changed = _blocking(TrioLitePullConsumer.wait_assignment_changed)
    poll = _blocking(TrioLitePullConsumer.poll)
    poll_nowait = plain(TrioLitePullConsumer.poll_nowait)
    wait_messages = _blocking(TrioLitePullConsumer.wait_messages)
    pause = plain(TrioLitePullConsumer.pause)
    resume = plain(TrioLitePullConsumer.resume)
    position = plain(TrioLitePullConsumer.position)
    seek = _blocking(TrioLitePullConsumer.seek)
    seek_to_begin = _blocking(TrioLitePullConsumer.seek_to_begin)
    seek_to_end = _blocking(TrioLitePullConsumer.seek_to_end)
    seek_to_timestamp = _blocking(TrioLitePullConsumer.seek_to_timestamp)
    commit = _blocking(TrioLitePullConsumer.commit)
    commit_nowait = plain(TrioLitePullConsumer.commit_nowait)
    committed = _blocking(TrioLitePullConsumer.committed)
    statistics = plain(TrioLitePullConsumer.statistics)


class RangeReader(_Blocking[TrioRangeReader]):
    """See :class:`triomq.client.consumer.range_reader.RangeReader`; it pulls ahead while its caller computes."""

    @arguments_of(TrioRangeReader)
    def __init__(self) -> None: ...

    read = _blocking(TrioRangeReader.read)
    seek = plain(TrioRangeReader.seek)

    @property
    def position(self) -> int:
        """The offset up to which it was read."""
        return self._target.position


class Admin(_Blocking[TrioAdmin]):
    """See :class:`triomq.client.admin.admin.Admin`."""

    @arguments_of(TrioAdmin)
    def __init__(self) -> None: ...

    topics = _blocking(TrioAdmin.topics)
    topic_route = _blocking(TrioAdmin.topic_route)
    create_topic = _blocking(TrioAdmin.create_topic)
    delete_topic = _blocking(TrioAdmin.delete_topic)
    topic_config = _blocking(TrioAdmin.topic_config)
    update_topic = _blocking(TrioAdmin.update_topic)
    topic_stats = _blocking(TrioAdmin.topic_stats)
    find_messages = _blocking(TrioAdmin.find_messages)
    message = _blocking(TrioAdmin.message)
    min_offset = _blocking(TrioAdmin.min_offset)
    max_offset = _blocking(TrioAdmin.max_offset)
    cluster = _blocking(TrioAdmin.cluster)
    diagnose = _blocking(TrioAdmin.diagnose)
    groups = _blocking(TrioAdmin.groups)
    group_configs = _blocking(TrioAdmin.group_configs)
    create_group = _blocking(TrioAdmin.create_group)
    delete_group = _blocking(TrioAdmin.delete_group)
    group_lag = _blocking(TrioAdmin.group_lag)
    group_members = _blocking(TrioAdmin.group_members)
    group_member_ids = _blocking(TrioAdmin.group_member_ids)
    group_state = _blocking(TrioAdmin.group_state)
    reset_offsets = _blocking(TrioAdmin.reset_offsets)
    dead_letter_counts = _blocking(TrioAdmin.dead_letter_counts)
    dead_letters = _blocking(TrioAdmin.dead_letters)
    redrive = _blocking(TrioAdmin.redrive)
    plan_replay = _blocking(TrioAdmin.plan_replay)
    replay = _blocking(TrioAdmin.replay)
    transactions = _blocking(TrioAdmin.transactions)
    decide_transaction = _blocking(TrioAdmin.decide_transaction)
