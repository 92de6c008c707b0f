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
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import TracebackType
from typing import Concatenate, Generic, ParamSpec, Self, TypeVar

from triomq.client.admin import Admin as TrioAdmin
from triomq.client.consumer.pull import PullConsumer as TrioPullConsumer
from triomq.client.consumer.push import PushConsumer as TrioPushConsumer
from triomq.client.instance import ClientInstance as TrioClientInstance
from triomq.client.portal import Guest, Portal, acquire_portal, release_portal
from triomq.client.producer import Producer as TrioProducer
from triomq.protocol.errors import ClientClosedError, ClientError

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A", bound=AbstractAsyncContextManager[object], covariant=True)


class _Blocking(Generic[A]):
    """Holds an asynchronous client open in the background thread."""

    _target: A
    _guest: Guest[object] | None = None
    _portal: Portal | None = None

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        portal, guest = self._entered()
        self._portal = None
        if portal.process_id != os.getpid():
            return  # a fork: the parent's thread is not here
        try:
            portal.call(guest.leave)
        finally:
            release_portal(portal)

    def _open(self) -> None:
        if self._guest is not None:
            raise ClientError(f"a {type(self).__name__} can be entered once only: make a new one")
        portal = acquire_portal()
        guest = Guest[object](self._target)
        try:
            portal.open(guest)
        except BaseException:
            release_portal(portal)
            raise
        self._guest = guest
        self._portal = portal

    def _entered(self) -> tuple[Portal, Guest[object]]:
        if self._portal is None or self._guest is None:
            raise ClientClosedError(f"the {type(self).__name__} is not open: use it inside its with block")
        return self._portal, self._guest


def _arguments_of(
    make: Callable[P, A],
) -> Callable[[Callable[..., None]], Callable[Concatenate[_Blocking[A], P], None]]:
    """Give ``__init__`` the arguments of the asynchronous class, which it makes."""

    def decorate(_init: Callable[..., None]) -> Callable[Concatenate[_Blocking[A], P], None]:
        @wraps(make.__init__)  # for help() and editors
        def init(self: _Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> None:
            self._target = make(*args, **kwargs)

        return init

    return decorate


def _blocking(method: Callable[Concatenate[A, P], Awaitable[T]]) -> Callable[Concatenate[_Blocking[A], P], T]:
    """Make a method that runs the asynchronous one in the background thread and waits for it."""

    @wraps(method)
    def call(self: _Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        portal, guest = self._entered()
        guest.check()
        return portal.call(method, self._target, *args, **kwargs)

    return call


def _plain(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[_Blocking[A], P], T]:
    """Make a method that runs a plain one in the background thread."""

    @wraps(method)
    def call(self: _Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        portal, guest = self._entered()
        guest.check()
        return portal.call_plain(method, self._target, *args, **kwargs)

    return call


class ClientInstance(_Blocking[TrioClientInstance]):
    """Connections for several clients: ``with ClientInstance(...) as shared``, then ``instance=shared`` for each."""

    @_arguments_of(TrioClientInstance)
    def __init__(self) -> None: ...

    def __enter__(self) -> TrioClientInstance:  # type: ignore[override]  # what the others take
        self._open()
        return self._target


class Producer(_Blocking[TrioProducer]):
    """See :class:`triomq.client.producer.Producer`."""

    @_arguments_of(TrioProducer)
    def __init__(self) -> None: ...

    send = _blocking(TrioProducer.send)
    send_batch = _blocking(TrioProducer.send_batch)
    send_oneway = _blocking(TrioProducer.send_oneway)
    publish_queues = _blocking(TrioProducer.publish_queues)


class PushConsumer(_Blocking[TrioPushConsumer]):
    """See :class:`triomq.client.consumer.push.PushConsumer`; handlers that are plain functions run in threads."""

    @_arguments_of(TrioPushConsumer)
    def __init__(self) -> None: ...

    wait_assigned = _blocking(TrioPushConsumer.wait_assigned)
    subscribe = _blocking(TrioPushConsumer.subscribe)
    unsubscribe = _blocking(TrioPushConsumer.unsubscribe)
    suspend = _plain(TrioPushConsumer.suspend)
    resume = _plain(TrioPushConsumer.resume)
    resize = _plain(TrioPushConsumer.resize)
    statistics = _plain(TrioPushConsumer.statistics)

    def wait(self) -> None:
        """Block until Ctrl-C, or until the consumer fails, and raise its error then."""
        portal, guest = self._entered()
        portal.call(guest.wait)


class PullConsumer(_Blocking[TrioPullConsumer]):
    """See :class:`triomq.client.consumer.pull.PullConsumer`."""

    @_arguments_of(TrioPullConsumer)
    def __init__(self) -> None: ...

    queues = _blocking(TrioPullConsumer.queues)
    pull = _blocking(TrioPullConsumer.pull)
    min_offset = _blocking(TrioPullConsumer.min_offset)
    max_offset = _blocking(TrioPullConsumer.max_offset)
    search_offset = _blocking(TrioPullConsumer.search_offset)
    earliest_store_time = _blocking(TrioPullConsumer.earliest_store_time)
    committed = _blocking(TrioPullConsumer.committed)
    commit = _blocking(TrioPullConsumer.commit)


class Admin(_Blocking[TrioAdmin]):
    """See :class:`triomq.client.admin.Admin`."""

    @_arguments_of(TrioAdmin)
    def __init__(self) -> None: ...

    topics = _blocking(TrioAdmin.topics)
    topic_route = _blocking(TrioAdmin.topic_route)
    create_topic = _blocking(TrioAdmin.create_topic)
    delete_topic = _blocking(TrioAdmin.delete_topic)
    topic_config = _blocking(TrioAdmin.topic_config)
    topic_stats = _blocking(TrioAdmin.topic_stats)
    min_offset = _blocking(TrioAdmin.min_offset)
    max_offset = _blocking(TrioAdmin.max_offset)
    cluster = _blocking(TrioAdmin.cluster)
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
