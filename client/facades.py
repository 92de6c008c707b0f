"""The methods of the clients of ``sync.py`` and ``asyncio.py``, one line each; the logic is in the trio classes.

A :class:`Method` has two types: a blocking client's returns a result, a client's of asyncio an awaitable.  When the
class of a client is made, a function with the signature and docstring of the trio method replaces it.
"""

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar, overload

import trio

from triomq.client.admin.admin import Admin
from triomq.client.cluster.instance import ClientInstance
from triomq.client.consumer.lite_pull import LitePullConsumer
from triomq.client.consumer.pull import PullConsumer, QueueQueries
from triomq.client.consumer.push import PushConsumer
from triomq.client.nursery import wrong_block
from triomq.client.portal import HeldContext, Portal
from triomq.client.producer.producer import Producer
from triomq.client.producer.transaction import TransactionProducer
from triomq.protocol.errors import ClientClosedError, ClientError

P = ParamSpec("P")
T = TypeVar("T", covariant=True)


class Facade:
    """Holds a trio client open in the portal's thread."""

    _target: Any
    _held: HeldContext[object] | None = None
    _portal: Portal | None = None
    _library: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        if cls._wrap is not Facade._wrap:
            names = {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
            for name, method in names.items():
                if isinstance(method, Method):
                    setattr(cls, name, cls._wrap(method.of_trio))

    @staticmethod
    def _wrap(method: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        """Return a function that calls a coroutine method of the trio client."""
        raise NotImplementedError

    def _make(self, make: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Make the trio client."""
        self._target = make(*args, **kwargs)

    def __enter__(self) -> Any:
        raise ClientError(wrong_block(self, self._library))

    def __exit__(self, *_error: object) -> None: ...  # else Python's error comes first

    async def __aenter__(self) -> Any:
        raise ClientError(wrong_block(self, self._library))

    async def __aexit__(self, *_error: object) -> None: ...

    def _hold(self) -> HeldContext[object]:
        if trio.lowlevel.in_trio_task():
            raise ClientError(wrong_block(self, self._library))
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


class Blocking(Facade):
    """Its methods return results."""


class Awaiting(Facade):
    """Its methods are coroutine functions of asyncio."""


class Method(Generic[P, T]):
    """A coroutine method of a trio client."""

    def __init__(self, of_trio: Callable[Concatenate[Any, P], Awaitable[T]]) -> None:
        self.of_trio = of_trio

    @overload
    def __get__(self, facade: Blocking, kind: object) -> Callable[P, T]: ...
    @overload
    def __get__(self, facade: Awaiting, kind: object) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, facade: Facade, kind: object) -> Any:
        """Only for types: at run time a function of the client's class takes its place."""
        raise NotImplementedError


def plain(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Make a method that runs a plain one in the portal's thread, between two steps of its tasks."""

    @wraps(method)
    def call(self: Facade, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._open_portal().call_plain(method, self._target, *args, **kwargs)

    return call


def arguments_of(make: Callable[P, object]) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give ``__init__`` the arguments of the trio class, which it makes."""

    def decorate(_init: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        @wraps(make.__init__)  # for help() and editors
        def init(self: Facade, /, *args: P.args, **kwargs: P.kwargs) -> None:
            self._make(make, args, kwargs)

        return init

    return decorate


class ClientInstanceFacade(Facade):
    """See :class:`triomq.client.cluster.instance.ClientInstance`."""

    @arguments_of(ClientInstance)
    def __init__(self) -> None: ...


class ProducerFacade(Facade):
    """See :class:`triomq.client.producer.producer.Producer`."""

    @arguments_of(Producer)
    def __init__(self) -> None: ...

    send = Method(Producer.send)
    send_batch = Method(Producer.send_batch)
    send_encoded_batch = Method(Producer.send_encoded_batch)
    send_oneway = Method(Producer.send_oneway)
    request = Method(Producer.request)
    recall = Method(Producer.recall)
    publish_queues = Method(Producer.publish_queues)


class TransactionProducerFacade(Facade):
    """See :class:`triomq.client.producer.transaction.TransactionProducer`."""

    @arguments_of(TransactionProducer)
    def __init__(self) -> None: ...

    begin = Method(TransactionProducer.begin)
    decide = Method(TransactionProducer.decide)


class PushConsumerFacade(Facade):
    """See :class:`triomq.client.consumer.push.PushConsumer`."""

    @arguments_of(PushConsumer)
    def __init__(self) -> None: ...

    wait_assigned = Method(PushConsumer.wait_assigned)
    subscribe = Method(PushConsumer.subscribe)
    unsubscribe = Method(PushConsumer.unsubscribe)
    suspend = plain(PushConsumer.suspend)
    resume = plain(PushConsumer.resume)
    resize = plain(PushConsumer.resize)
    statistics = plain(PushConsumer.statistics)


class QueueQueriesFacade(Facade):
    """See :class:`triomq.client.consumer.pull.QueueQueries`."""

    queues = Method(QueueQueries.queues)
    bounds = Method(QueueQueries.bounds)
    wait_queues_changed = Method(QueueQueries.wait_queues_changed)
    min_offset = Method(QueueQueries.min_offset)
    max_offset = Method(QueueQueries.max_offset)
    search_offset = Method(QueueQueries.search_offset)
    offset_for_timestamp = Method(QueueQueries.offset_for_timestamp)
    earliest_store_time = Method(QueueQueries.earliest_store_time)


class PullConsumerFacade(QueueQueriesFacade):
    """See :class:`triomq.client.consumer.pull.PullConsumer`."""

    @arguments_of(PullConsumer)
    def __init__(self) -> None: ...

    pull = Method(PullConsumer.pull)
    committed = Method(PullConsumer.committed)
    commit = Method(PullConsumer.commit)
    commit_oneway = Method(PullConsumer.commit_oneway)
    send_back = Method(PullConsumer.send_back)


class LitePullConsumerFacade(QueueQueriesFacade):
    """See :class:`triomq.client.consumer.lite_pull.LitePullConsumer`."""

    @arguments_of(LitePullConsumer)
    def __init__(self) -> None: ...

    subscribe = Method(LitePullConsumer.subscribe)
    unsubscribe = Method(LitePullConsumer.unsubscribe)
    assign = Method(LitePullConsumer.assign)
    wait_assigned = Method(LitePullConsumer.wait_assigned)
    assignment = plain(LitePullConsumer.assignment)
    wait_assignment_changed = Method(LitePullConsumer.wait_assignment_changed)
    poll_nowait = plain(LitePullConsumer.poll_nowait)
    wait_messages = Method(LitePullConsumer.wait_messages)
    pause = plain(LitePullConsumer.pause)
    resume = plain(LitePullConsumer.resume)
    position = plain(LitePullConsumer.position)
    seek = Method(LitePullConsumer.seek)
    seek_to_begin = Method(LitePullConsumer.seek_to_begin)
    seek_to_end = Method(LitePullConsumer.seek_to_end)
    seek_to_timestamp = Method(LitePullConsumer.seek_to_timestamp)
    commit = Method(LitePullConsumer.commit)
    commit_nowait = plain(LitePullConsumer.commit_nowait)
    committed = Method(LitePullConsumer.committed)
    statistics = plain(LitePullConsumer.statistics)


class AdminFacade(Facade):
    """See :class:`triomq.client.admin.admin.Admin`."""

    @arguments_of(Admin)
    def __init__(self) -> None: ...

    topics = Method(Admin.topics)
    brokers = Method(Admin.brokers)
    name_servers = Method(Admin.name_servers)
    accounts = Method(Admin.accounts)
    positions = Method(Admin.positions)
    oldest_waiting_ms = Method(Admin.oldest_waiting_ms)
    broker_settings = Method(Admin.broker_settings)
    backlog = Method(Admin.backlog)
    topic_contents = Method(Admin.topic_contents)
    topic_route = Method(Admin.topic_route)
    create_topic = Method(Admin.create_topic)
    delete_topic = Method(Admin.delete_topic)
    topic_config = Method(Admin.topic_config)
    update_topic = Method(Admin.update_topic)
    topic_stats = Method(Admin.topic_stats)
    find_messages = Method(Admin.find_messages)
    message = Method(Admin.message)
    newest_messages = Method(Admin.newest_messages)
    message_at = Method(Admin.message_at)
    messages_from = Method(Admin.messages_from)
    consumers_of = Method(Admin.consumers_of)
    progress_of = Method(Admin.progress_of)
    trace = Method(Admin.trace)
    min_offset = Method(Admin.min_offset)
    max_offset = Method(Admin.max_offset)
    cluster = Method(Admin.cluster)
    diagnose = Method(Admin.diagnose)
    replicas = Method(Admin.replicas)
    promote = Method(Admin.promote)
    groups = Method(Admin.groups)
    group_configs = Method(Admin.group_configs)
    create_group = Method(Admin.create_group)
    delete_group = Method(Admin.delete_group)
    group_lag = Method(Admin.group_lag)
    group_members = Method(Admin.group_members)
    group_member_ids = Method(Admin.group_member_ids)
    group_state = Method(Admin.group_state)
    reset_offsets = Method(Admin.reset_offsets)
    dead_letter_counts = Method(Admin.dead_letter_counts)
    dead_letters = Method(Admin.dead_letters)
    redrive = Method(Admin.redrive)
    redrive_chosen = Method(Admin.redrive_chosen)
    plan_replay = Method(Admin.plan_replay)
    replay = Method(Admin.replay)
    transactions = Method(Admin.transactions)
    decide_transaction = Method(Admin.decide_transaction)
