"""Delivery of requests of a producer: which queue, which connection, and what happens after a failed attempt.

Source: behaviour.md B.3.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import trio

from triomq.client.cluster.instance import ClientInstance
from triomq.client.connection.connection import ClientConnection
from triomq.client.environment import RANDOM
from triomq.client.producer.config import STATUS_BY_CODE, ProducerConfig, SendResult, SendStatus, read_send_result
from triomq.client.producer.publish import NoSuchQueueError, Outgoing, Target, TopicPlan, check_topic
from triomq.protocol.codes import CommandFlag, ResponseCode
from triomq.protocol.errors import (
    BrokerResponseError,
    ConnectError,
    ConnectionLostError,
    NoRouteError,
    RequestTimeoutError,
    TriomqError,
)
from triomq.protocol.names import AUTO_CREATE_TOPIC

_ONEWAY: Final = int(CommandFlag.ONEWAY)
_FIRST_PAUSE_S: Final = 0.1
_MAX_PAUSE_S: Final = 0.5
#: With less time left, a busy broker gets no further attempt, because it might store a message that the caller has
#: given up.  The last attempt to connect begins when this much time is left.
_LAST_TRY_S: Final = 0.2
_ROUNDING_S: Final = 1e-3
_SPREAD: Final = 1.5
#: A broker that sends nothing for this long is given up if another one can take the message.
_SILENCE_S: Final = 1.0
#: How long a broker is avoided after an answer that took this long, in seconds, longest first.
_AVOIDED_S_BY_LATENCY_S: Final = ((15.0, 600.0), (3.0, 180.0), (2.0, 120.0), (1.0, 60.0), (0.55, 30.0))

Choice: TypeAlias = Callable[[TopicPlan], Target]
OnAnswer: TypeAlias = Callable[[str, Mapping[str, str]], None]


class Attempts(NamedTuple):
    """The attempts of one send so far.

    Attributes:
        brokers: names in order.
        reached: attempts that may have reached a broker.
        unreached: attempts without a connection, which sent nothing.
    """

    brokers: tuple[str, ...] = ()
    reached: int = 0
    unreached: int = 0

    def add(self, broker_name: str, error: TriomqError | None = None) -> "Attempts":
        """Return these attempts and one more."""
        is_unreached = isinstance(error, ConnectError)
        brokers = (*self.brokers, broker_name)
        return Attempts(brokers, self.reached + (not is_unreached), self.unreached + is_unreached)


_NO_ATTEMPTS: Final = Attempts()


class Retry(NamedTuple):
    """Try again: after a pause, with these attempts behind it."""

    pause_s: float
    attempts: Attempts


def next_try(
    error: TriomqError,
    attempts: Attempts,
    left_s: float,
    settings: ProducerConfig,
    *,
    has_other: bool,
    is_chosen: bool,
    spread: float = 1.0,
) -> Retry | None:
    """Decide whether a failed send is retried; ``None``: raise the error.

    An attempt that stored nothing does not count against ``retries``: one without a connection (unless ``retries``
    is 0), and one that a busy broker refused (unless ``on_busy`` is "raise").

    Args:
        error: why the last attempt failed.
        attempts: all attempts, the last one included.
        left_s: time left for the send.
        settings: of the producer.
        has_other: another broker seems able to take the message.
        is_chosen: the caller chose the queue, so only attempts that stored nothing are repeated.
        spread: multiplies pauses, 1 to 1.5, so that senders that failed together do not return together.
    """
    is_left = not is_chosen and left_s > 0 and attempts.reached <= settings.retries
    if isinstance(error, ConnectError):
        if has_other and left_s > 0:
            return Retry(0.0, attempts)
        room_s = left_s - _LAST_TRY_S
        pause_s = min(_growing_pause_s(attempts.unreached), _MAX_PAUSE_S) * spread
        return Retry(min(pause_s, room_s), attempts) if settings.retries and room_s > _ROUNDING_S else None
    if not isinstance(error, BrokerResponseError):
        if has_other and left_s > 0:
            return Retry(0.0, attempts)
        return Retry(min(_growing_pause_s(attempts.reached), left_s), attempts) if is_left else None  # it may restart
    is_busy = error.code == ResponseCode.SYSTEM_BUSY
    if is_left and error.is_retriable_elsewhere and (has_other or not is_busy):
        return Retry(0.0, attempts)
    wait_s = error.retry_after_s
    if wait_s is None and is_busy:
        wait_s = max(_FIRST_PAUSE_S, min(settings.send_timeout_s - left_s, _MAX_PAUSE_S))
    if wait_s is None or settings.on_busy == "raise" or wait_s * spread + _LAST_TRY_S >= left_s:
        return None
    return Retry(wait_s * spread, Attempts(attempts.brokers[-1:], 1))  # all brokers become eligible again


def _growing_pause_s(attempts: int) -> float:
    return _FIRST_PAUSE_S * 2.0 ** (attempts - 1)


class LatencyFaults:
    """The brokers that a producer avoids for a while because they answered slowly (``send_latency_fault_enable``).

    Unlike RocketMQ's table it does not hold brokers that failed, so a broker that returns is used at once.

    Attributes:
        slow: by broker name, latency of the last answer in seconds, and until when the broker is avoided.
    """

    __slots__ = ("_clock", "slow")

    def __init__(self, clock: Callable[[], float]) -> None:
        """Take a clock in seconds."""
        self._clock = clock
        self.slow: dict[str, tuple[float, float]] = {}

    def answered(self, broker_name: str, latency_s: float) -> None:
        """Record how long a broker took to answer, or how long it has not answered."""
        for limit_s, avoided_s in _AVOIDED_S_BY_LATENCY_S:
            if latency_s >= limit_s:
                self.slow[broker_name] = latency_s, self._clock() + avoided_s
                return
        self.slow.pop(broker_name, None)

    def prefer(self, broker_names: Collection[str]) -> Collection[str]:
        """Return the brokers that are not avoided; if all are, the quicker half of them."""
        now = self._clock()
        for name in [name for name, (_, until) in self.slow.items() if until <= now]:
            del self.slow[name]
        quick = [name for name in broker_names if name not in self.slow]
        return quick or sorted(broker_names, key=self.slow.__getitem__)[: (len(broker_names) + 1) // 2]


class Delivery:
    """Sends prepared requests for one open producer."""

    def __init__(
        self, instance: ClientInstance, group: str, settings: ProducerConfig, on_answer: OnAnswer | None = None
    ) -> None:
        """Take an open instance, and a function that gets broker and fields of each answer."""
        self._instance = instance
        self._connections = instance.requests.connections
        self._failing = instance.groups.failing
        self._latencies = LatencyFaults(trio.current_time)  # empty without ``send_latency_fault_enable``
        self._group = group
        self.namespace = instance.requests.namespace
        self._settings = settings
        self._on_answer = on_answer
        self._plans: dict[str, TopicPlan] = {}

    async def send(self, topic: str, outgoing: Outgoing, choose: Choice | None) -> SendResult:
        """Send until a broker has stored it or :func:`next_try` gives up; ``choose`` picks the queue.

        A message that was stored, but not flushed or copied in time, is sent again only with
        ``retry_another_broker_when_not_stored_ok``.
        """
        settings, attempts = self._settings, _NO_ATTEMPTS
        deadline = trio.current_time() + settings.send_timeout_s
        while True:
            await trio.lowlevel.checkpoint_if_cancelled()
            plan = self._current_plan(topic) or await self._plan_in_time(topic, deadline)
            chosen = self._choose(plan, attempts.brokers, choose) or await self._choose_anew(topic, deadline, choose)
            target, has_other = chosen
            try:
                result = await self._try_once(target, outgoing, deadline, has_other)
            except (ConnectError, ConnectionLostError, RequestTimeoutError, BrokerResponseError) as exc:
                attempts = attempts.add(target.queue.broker_name, exc)
                self._refresh_route(topic, target, exc)
                left_s, is_chosen = deadline - trio.current_time(), choose is not None
                spread = RANDOM.uniform(1, _SPREAD)
                retry = next_try(
                    exc, attempts, left_s, settings, has_other=has_other, is_chosen=is_chosen, spread=spread
                )
                if retry is None:
                    if len(names := attempts.brokers) > 1:
                        exc.add_note(f"tried {len(names)} times: {', '.join(names)}")
                    raise
                attempts = retry.attempts
                if retry.pause_s:
                    await trio.sleep(retry.pause_s)
                continue
            if result.status is SendStatus.SEND_OK or choose is not None:
                return result
            attempts = attempts.add(target.queue.broker_name)
            is_over = attempts.reached > settings.retries or trio.current_time() >= deadline
            if is_over or not settings.retry_another_broker_when_not_stored_ok:
                return result

    async def send_oneway(self, topic: str, outgoing: Outgoing, choose: Choice | None) -> None:
        """Write the request once."""
        deadline = trio.current_time() + self._settings.send_timeout_s
        while True:
            plan = await self._plan_in_time(topic, deadline)
            chosen = self._choose(plan, (), choose) or await self._choose_anew(topic, deadline, choose)
            target, has_other = chosen
            connection = self._connections.get(target.address)
            try:
                connection = connection or await self._connect(target, deadline, has_other)
                break
            except ConnectError as exc:
                self._refresh_route(topic, target, exc)
                if not has_other:
                    raise
        opaque, credentials = self._instance.requests.next_opaque(), self._instance.config.credentials
        frame, body = outgoing.frame(target, opaque, connection.header_format, credentials, _ONEWAY)
        await connection.send(frame + body, deadline)

    async def plan(self, topic: str) -> TopicPlan:
        """Return the plan of a topic, a new one if the route has changed.

        Raises:
            IllegalNameError: clients may not send to the topic.
            NoRouteError: the topic has no queue that can be written.
        """
        plan = self._current_plan(topic)
        if plan is not None:
            return plan
        check_topic(topic)
        routes = self._instance.routes
        route = await routes.publish(topic)
        known = routes.known(topic)
        if known is not route:  # the topic may have been made while its template was asked for: plan for one send
            known = routes.known(AUTO_CREATE_TOPIC)
        plan = TopicPlan(self._group, topic, known, route, self.namespace)
        if not plan.masters:
            routes.refresh(topic)  # a slave may become the master
            raise NoRouteError(
                f"topic {topic!r} has no writable queue: the permission of the topic or of its brokers forbids it, "
                "or their masters are away (see triomq topic show)"
            )
        self._plans[topic] = plan
        return plan

    def _current_plan(self, topic: str) -> TopicPlan | None:
        plan, routes = self._plans.get(topic), self._instance.routes
        if plan is None or plan.route is not (routes.known(topic) or routes.known(AUTO_CREATE_TOPIC)):
            return None
        return plan

    async def _plan_in_time(self, topic: str, deadline: float) -> TopicPlan:
        with trio.move_on_at(deadline):
            return await self.plan(topic)
        asked = ", ".join(self._instance.requests.name_servers.addresses)
        raise RequestTimeoutError(f"no route for topic {topic!r} in time; name servers: {asked}")

    def _choose(self, plan: TopicPlan, tried: Sequence[str], choose: Choice | None) -> tuple[Target, bool] | None:
        """Return where to send, and whether another broker seems able to take the message if that one does not.

        Without ``choose`` the targets take turns, but not those of the broker tried last, of failing brokers and of
        slow ones, as long as there are others.  ``None``: the plan does not have the chosen queue.
        """
        if choose is not None:
            try:
                return choose(plan), False
            except (NoSuchQueueError, NoRouteError):
                return None
        masters, failing = plan.masters, self._failing
        may_retry = self._settings.retries > 0
        if not (tried or failing or self._latencies.slow):
            return plan.choose(), may_retry and len(masters) > 1
        usable = {name for name, address in masters.items() if address not in failing}
        names = usable or set(masters)
        target = plan.choose_among(self._latencies.prefer(names.difference(tried[-1:]) or names))
        return target, may_retry and bool(usable - {target.queue.broker_name})

    async def _choose_anew(self, topic: str, deadline: float, choose: Choice | None) -> tuple[Target, bool]:
        """Ask for the route, which may be older than the chosen queue, and choose again.

        Raises:
            MessageIllegalError, NoRouteError: the topic has no such queue, or its broker is away.
            NameServerError: no name server answered.
        """
        assert choose is not None
        with trio.move_on_at(deadline):
            await self._instance.routes.find(topic, refresh=True)
        return choose(await self._plan_in_time(topic, deadline)), False

    def _refresh_route(self, topic: str, target: Target, error: Exception) -> None:
        routes = self._instance.routes
        if not isinstance(error, BrokerResponseError):
            self._instance.groups.send_failed(target.address)
            if routes.known(topic) is None:  # the template's route is not polled
                routes.refresh(AUTO_CREATE_TOPIC)
        routes.refresh(topic)

    async def _try_once(self, target: Target, outgoing: Outgoing, deadline: float, has_other: bool) -> SendResult:
        """Send once; if another broker seems able to take the message, leave it a third of the time at least."""
        began = trio.current_time()
        connection = self._connections.get(target.address) or await self._connect(target, deadline, has_other)
        silence_s = 0.0
        if has_other:
            silence_s = _silence_s(deadline)
            deadline -= (deadline - began) / 3
        instance = self._instance
        opaque = instance.requests.next_opaque()
        frame, body = outgoing.frame(target, opaque, connection.header_format, instance.config.credentials)
        response = None
        try:
            response = await connection.request(opaque, frame, deadline, body, silence_s)
        finally:
            if self._settings.send_latency_fault_enable:
                now = trio.current_time()
                if response is not None or now >= deadline:  # not if it was given up earlier: it may not be slow
                    self._latencies.answered(target.queue.broker_name, now - began)
        status = STATUS_BY_CODE.get(response.code)
        if status is None:
            raise BrokerResponseError.from_response(response.code, response.remark, target.address, response.ext_fields)
        if self._on_answer is not None:
            self._on_answer(target.queue.broker_name, response.ext_fields)
        return read_send_result(status, outgoing.message_id, target.queue, response.ext_fields)

    async def _connect(self, target: Target, deadline: float, has_other: bool) -> ClientConnection:
        if has_other:
            deadline = trio.current_time() + _silence_s(deadline)
        return await self._connections.connect(target.address, deadline)


def _silence_s(deadline: float) -> float:
    """Return for how long nothing may arrive from a broker if another one can take the message."""
    return min(_SILENCE_S, (deadline - trio.current_time()) / 3)
