"""Delivery of requests of a producer: which queue, which connection, and what happens after a failed attempt.

Source: behaviour.md B.3.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import trio

from triomq.client.cluster.instance import ClientInstance
from triomq.client.connection.connection import Connection
from triomq.client.environment import RANDOM
from triomq.client.producer.config import ProducerConfig
from triomq.client.producer.latency_faults import LatencyFaults
from triomq.client.producer.publish import NoSuchQueueError, Outgoing, Target, TopicPlan, check_topic
from triomq.client.producer.send_result import STATUS_BY_CODE, SendResult, SendStatus, read_send_result
from triomq.protocol.codes import CommandFlag, ResponseCode
from triomq.protocol.errors import (
    BrokerResponseError,
    ConnectError,
    ConnectionLostError,
    NoRouteError,
    RequestTimeoutError,
)
from triomq.protocol.names import AUTO_CREATE_TOPIC

_ONEWAY: Final = int(CommandFlag.ONEWAY)
#: Errors of one broker that another broker, or the same one a moment later, may not have.
_RETRY_CODES: Final = frozenset(
    (
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        204,  # NO_BUYER_ID
        205,  # NOT_IN_CURRENT_UNIT
    )
)
_FIRST_PAUSE_S: Final = 0.1
_MAX_PAUSE_S: Final = 0.5
#: With less time a busy broker is not tried again: it might store what is then given up.  The last attempt to connect
#: is made when so much is left.
_LAST_TRY_S: Final = 0.2
_ROUNDING_S: Final = 1e-3
_SPREAD: Final = 1.5
#: A broker from which nothing arrives for this long is given up if another one can take the message.
_SILENCE_S: Final = 1.0

Choice: TypeAlias = Callable[[TopicPlan], Target]


class _Attempts:
    """What one send has tried.

    Attributes:
        brokers: names in order.
        count: attempts that may have reached a broker.
        unreached: further ones, which could not connect, so that nothing was sent.
    """

    __slots__ = ("brokers", "count", "unreached")

    def __init__(self) -> None:
        self.brokers: list[str] = []
        self.count = self.unreached = 0

    def failed(self, broker_name: str, error: Exception) -> None:
        self.brokers.append(broker_name)
        if isinstance(error, ConnectError):
            self.unreached += 1
        else:
            self.count += 1

    def restart(self) -> None:
        """Let all brokers be tried again: the last one was busy and stored nothing."""
        del self.brokers[:-1]
        self.count, self.unreached = 1, 0


class Delivery:
    """Sends prepared requests for one open producer."""

    __slots__ = (
        "_connections",
        "_failing",
        "_group",
        "_instance",
        "_latencies",
        "_plans",
        "_read_result",
        "_settings",
        "_tries",
        "namespace",
    )

    def __init__(self, instance: ClientInstance, group: str, settings: ProducerConfig) -> None:
        self._instance = instance
        self._connections = instance.requests.connections
        self._failing = instance.groups.failing
        self._latencies = LatencyFaults(trio.current_time)  # empty unless they are to be noted
        self._group = group
        self.namespace = instance.requests.namespace
        self._settings = settings
        self._tries = 1 + settings.retries
        self._read_result = read_send_result
        self._plans: dict[str, TopicPlan] = {}

    async def send(self, topic: str, outgoing: Outgoing, choose: Choice | None) -> SendResult:
        """Try until a broker stored it, or the attempts or the time are used up; one attempt if ``choose`` is given.

        Where nothing was stored it is no attempt: without a connection, unless ``retries`` is 0, and after a refusal by
        a busy broker, unless ``on_busy`` is "raise".
        """
        deadline = trio.current_time() + self._settings.send_timeout_s
        tried = _Attempts()
        while True:
            await trio.lowlevel.checkpoint_if_cancelled()
            plan = self._current_plan(topic) or await self._plan_in_time(topic, deadline)
            chosen = self._choose(plan, tried.brokers, choose) or await self._choose_anew(topic, deadline, choose)
            target, has_other = chosen
            try:
                result = await self._try_once(target, outgoing, deadline, has_other)
            except (ConnectError, ConnectionLostError, RequestTimeoutError, BrokerResponseError) as exc:
                tried.failed(target.queue.broker_name, exc)
                self._note_failure(topic, target, exc)
                if choose is None and self._may_retry(exc, tried, deadline, has_other):
                    is_alone = not (has_other or isinstance(exc, BrokerResponseError))
                    pause_s = _restart_pause_s(tried.count, deadline) if is_alone else 0.0
                elif (wait_s := self._wait_s(exc, tried, deadline)) is not None:
                    pause_s = wait_s
                else:
                    raise
                if pause_s:
                    await trio.sleep(pause_s)
                continue
            if choose is not None or result.status is SendStatus.SEND_OK or self._is_enough(tried, target, deadline):
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
                self._note_failure(topic, target, exc)
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

    def _note_failure(self, topic: str, target: Target, error: Exception) -> None:
        routes = self._instance.routes
        if not isinstance(error, BrokerResponseError):
            self._instance.groups.send_failed(target.address)
            if routes.known(topic) is None:  # the template's route is not polled
                routes.refresh(AUTO_CREATE_TOPIC)
        routes.refresh(topic)

    def _may_retry(self, error: Exception, tried: _Attempts, deadline: float, has_other: bool) -> bool:
        is_left = tried.count < self._tries
        if isinstance(error, ConnectError):
            may = has_other
        elif isinstance(error, BrokerResponseError):
            may = is_left and (error.code in _RETRY_CODES or (error.code == ResponseCode.SYSTEM_BUSY and has_other))
        else:
            may = is_left or has_other
        return may and trio.current_time() < deadline

    def _wait_s(self, error: Exception, tried: _Attempts, deadline: float) -> float | None:
        """Return how long to wait until an attempt that stored nothing is repeated, ``None``: it is not.

        The pauses differ, or all that failed together would come back together.
        """
        wait_s = None
        if not isinstance(error, ConnectError):
            wait_s = self._busy_pause_s(error, deadline)
            if wait_s is not None:
                tried.restart()
        elif self._settings.retries and (left_s := deadline - trio.current_time() - _LAST_TRY_S) > _ROUNDING_S:
            pause_s = min(_FIRST_PAUSE_S * 2.0 ** (tried.unreached - 1), _MAX_PAUSE_S) * RANDOM.uniform(1, _SPREAD)
            wait_s = min(pause_s, left_s)
        if wait_s is None and len(names := tried.brokers) > 1:
            error.add_note(f"tried {len(names)} times: {', '.join(names)}")
        return wait_s

    def _busy_pause_s(self, error: Exception, deadline: float) -> float | None:
        if not isinstance(error, BrokerResponseError) or self._settings.on_busy == "raise":
            return None
        left_s, pause_s = deadline - trio.current_time(), error.retry_after_s
        if pause_s is None:
            if error.code != ResponseCode.SYSTEM_BUSY:
                return None
            pause_s = max(_FIRST_PAUSE_S, min(self._settings.send_timeout_s - left_s, _MAX_PAUSE_S))
        pause_s *= RANDOM.uniform(1, _SPREAD)
        return pause_s if pause_s + _LAST_TRY_S < left_s else None

    def _is_enough(self, tried: _Attempts, target: Target, deadline: float) -> bool:
        """Return whether a message that was stored, but not flushed or copied in time, is not sent again."""
        tried.brokers.append(target.queue.broker_name)
        tried.count += 1
        if not self._settings.retry_another_broker_when_not_stored_ok:
            return True
        return tried.count >= self._tries or trio.current_time() >= deadline

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
        return self._read_result(status, outgoing.message_id, target.queue, response.ext_fields)

    async def _connect(self, target: Target, deadline: float, has_other: bool) -> Connection:
        if has_other:
            deadline = trio.current_time() + _silence_s(deadline)
        return await self._connections.connect(target.address, deadline)


def _silence_s(deadline: float) -> float:
    """Return for how long nothing may arrive from a broker if another one can take the message."""
    return min(_SILENCE_S, (deadline - trio.current_time()) / 3)


def _restart_pause_s(tries: int, deadline: float) -> float:
    """Return how long to wait before the next attempt at the only broker of a topic: it may be restarting."""
    return max(0.0, min(_FIRST_PAUSE_S * 2.0 ** (tries - 1), deadline - trio.current_time()))
