"""Routes of topics: fetched once for all callers, cached, and polled while they are in use.

Source: behaviour.md B.2 (route update).
"""

import logging
from math import inf
from typing import Final

import trio

from triomq.client.cluster.groups import Groups
from triomq.client.cluster.requests import Requests, raise_for_code
from triomq.client.cluster.route import (
    BrokerTable,
    Queues,
    default_route,
    explain_no_route,
    read_route,
    same_route,
    similar_names,
    subscribe_queues,
)
from triomq.client.environment import RANDOM
from triomq.protocol.bodies.route import ClusterInfo, TopicList, TopicRouteData
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import (
    REMOTE_ERRORS,
    BrokerResponseError,
    ClientClosedError,
    ClientError,
    NoBrokerError,
    NoRouteError,
    ProtocolError,
    TriomqError,
)
from triomq.protocol.event_log import EventLog
from triomq.protocol.names import AUTO_CREATE_TOPIC
from triomq.protocol.requests.topics import GetRouteInfoRequestHeader

LOGGER: Final = logging.getLogger("triomq.client.cluster.routes")

#: Failures ask for a route again at most this often.
_REFRESH_S: Final = 1.0
#: How often a route is polled that lost a broker or has one that fails, and for how long.
_WATCH_INTERVAL_S: Final = 3.0
_WATCH_S: Final = 600.0
#: First and longest pause between requests for the address of a broker that consumers cannot reach.
_SEEK_S: Final = (0.1, 1.0)
_UNWATCHED: Final[tuple[frozenset[str], float]] = (frozenset(), -inf)


class _Fetch:
    """A request for a route that several callers wait for."""

    __slots__ = ("done", "error", "route")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.route: TopicRouteData | None = None
        self.error: TriomqError | None = None


class Routes:
    """The routes of one instance."""

    def __init__(self, requests: Requests, brokers: BrokerTable, groups: Groups) -> None:
        """Take the sender of requests, the table to fill, and the consumers to notify of changes."""
        self._requests = requests
        self._brokers = brokers
        self._groups = groups
        self._nursery: trio.Nursery
        self._known: dict[str, TopicRouteData] = {}
        self._fetches: dict[str, _Fetch] = {}
        self._published: set[str] = set()
        self._sought: set[str] = set()  # addresses of brokers that consumers cannot reach
        self._refreshed: dict[str, float] = {}  # when a failure last asked for the route
        # By topic: names of the brokers expected to return, and until when.
        self._watched: dict[str, tuple[frozenset[str], float]] = {}
        self._log = EventLog(
            LOGGER, "routes not updated topics=%d error=%s", logging.WARNING, recovery="routes are updated again"
        )

    def start(self, nursery: trio.Nursery) -> None:
        """Poll the routes in use from now on; requests for routes run in the nursery."""
        self._nursery = nursery
        self._groups.on_unreachable = self._seek_soon
        nursery.start_soon(self._run)

    def known(self, topic: str) -> TopicRouteData | None:
        """Return the route as last received, without asking."""
        return self._known.get(topic)

    def known_subscribe_queues(self, topic: str) -> Queues:
        """Return the queues to consume as last received, without asking; none if the topic is unknown."""
        route = self._known.get(topic)
        return () if route is None else subscribe_queues(topic, route)

    async def find(self, topic: str, refresh: bool = False) -> TopicRouteData | None:
        """Return the route of a topic, asking the name server if it is unknown or ``refresh`` is set.

        Concurrent callers share one request.  ``None``: the name server has no route; one known before is kept.

        Raises:
            NameServerError: none answered.
            BrokerResponseError: the name server refused.
            ProtocolError: its answer is malformed.
        """
        self._requests.check_open()
        if not refresh and (known := self._known.get(topic)) is not None:
            return known
        self._start_fetch(topic)
        fetch = self._fetches[topic]
        await fetch.done.wait()
        if fetch.error is not None:
            raise fetch.error
        return fetch.route

    async def topic_route(self, topic: str, refresh: bool = False) -> TopicRouteData:
        """Like :meth:`find`, for topics that should have a route.

        Raises:
            NoRouteError: the name server has none; the text names similar topics and says how to create it.
            NoBrokerError: the name server knows no broker at all.
        """
        route = await self.find(topic, refresh)
        if route is None:
            raise await self._no_route(topic)
        return route

    def refresh(self, topic: str) -> None:
        """Ask for the route again, without waiting: a broker in it failed; at most once a second."""
        now = trio.current_time()
        if self._requests.is_open and now >= self._refreshed.get(topic, -inf) + _REFRESH_S:
            self._refreshed[topic] = now
            self._watch(topic)
            self._start_fetch(topic)

    def _start_fetch(self, topic: str) -> None:
        if topic not in self._fetches:
            fetch = self._fetches[topic] = _Fetch()
            self._nursery.start_soon(self._fetch, topic, fetch)

    def refresh_unpolled(self, topic: str) -> None:
        """Like :meth:`refresh`, unless the route is polled anyway."""
        if topic not in self._polled():
            self.refresh(topic)

    async def publish(self, topic: str) -> TopicRouteData:
        """Return the route for sending; of an unknown topic the one that it gets with the first send.

        The topic's route is polled from now on.

        Raises:
            NoRouteError: no route, and no broker creates topics automatically.
        """
        route = await self.find(topic)
        if route is None:
            template = await self.find(AUTO_CREATE_TOPIC, refresh=True)  # it is not polled
            if template is None:
                raise await self._no_route(topic)
            route = default_route(template)
        self._published.add(topic)
        return route

    async def subscribe_queues(self, topic: str) -> Queues:
        """Return the queues to consume, sorted as all members of a group sort them.

        Raises:
            NoRouteError: the name server has no route.
        """
        return subscribe_queues(topic, await self.topic_route(topic))

    async def topics(self) -> list[str]:
        """Return the names of all topics the name server knows, sorted."""
        response = await self._requests.ask_namesrv(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(TopicList.decode(response.body).topic_list)

    async def similar_topics(self, topic: str) -> str:
        """Return a text that names similar topics, or says why it does not."""
        try:
            topics = [name for name in await self.topics() if not name.startswith("%")]
        except REMOTE_ERRORS as exc:
            return f"similar topics are unknown: {exc}"
        else:
            return similar_names("topic", topic, topics)

    async def cluster(self) -> ClusterInfo:
        """Return all brokers the name server knows, by cluster and name."""
        return ClusterInfo.decode((await self._requests.ask_namesrv(RequestCode.GET_BROKER_CLUSTER_INFO)).body)

    async def _no_route(self, topic: str) -> NoRouteError:
        """Return the error for a topic without route: which name servers were asked, and what the reason may be.

        Without a registered broker it is unknown whether the topic exists, so the error does not mention it.
        """
        asked = self._requests.name_servers.addresses
        topics: list[str] | None = None
        auto_create: bool | None = None
        try:
            topics = await self.topics()
            auto_create = await self.find(AUTO_CREATE_TOPIC) is not None
            if not (await self.cluster()).broker_addr_table:
                return NoBrokerError(
                    f"topic {topic!r} has no route: no broker is registered (name server asked: {', '.join(asked)}); "
                    "is the broker running, and is this its name server?"
                )
        except REMOTE_ERRORS as exc:
            LOGGER.info("no hints for a missing topic topic=%s error=%s", topic, exc)
        return NoRouteError(explain_no_route(topic, asked, topics, auto_create))

    async def _run(self) -> None:
        interval_s = self._requests.config.poll_namesrv_interval_s
        due = trio.current_time() + interval_s
        while True:
            await trio.sleep_until(min(due, trio.current_time() + _WATCH_INTERVAL_S))
            topics, now = self._polled(), trio.current_time()
            if now < due:
                topics = {topic for topic in topics if now < self._watched.get(topic, _UNWATCHED)[1]}
            else:
                due = now + interval_s
            for topic in sorted(topics):
                try:
                    await self.find(topic, refresh=True)
                except (BrokerResponseError, ProtocolError) as exc:
                    LOGGER.warning("route not updated topic=%s error=%s", topic, exc)
                except ClientError as exc:
                    self._log.occurred(len(topics), exc)
                    break
                else:
                    self._log.ended()

    def _seek_soon(self, address: str) -> None:
        if address not in self._sought:
            self._sought.add(address)
            self._nursery.start_soon(self._seek, address)

    async def _seek(self, address: str) -> None:
        """Ask for the new address of a broker that consumers cannot reach, until it is reached or not in their routes.

        One topic's route is asked for.  It is taken only if the broker is in it: a restart alone moves no queue.
        """
        name, _ = self._brokers.addresses()[address]
        pause_s, longest_s = _SEEK_S
        try:
            while self._requests.is_open and self._requests.connections.get(address) is None:
                await trio.sleep(RANDOM.uniform(pause_s / 2, pause_s))
                pause_s = min(2 * pause_s, longest_s)
                topics = sorted(topic for topic in self._polled() if address in _addresses(self.known(topic), name))
                if topics:
                    try:
                        now_at = _addresses(await self._ask(topics[0]), name)
                    except REMOTE_ERRORS:
                        continue  # the poll logs it
                    if not now_at or address in now_at:
                        continue
                for topic in topics:
                    self._start_fetch(topic)
                return
        finally:
            self._sought.discard(address)

    def _watch(self, topic: str) -> None:
        """Poll the route more often for a time, until it has the brokers that it has now and none fails."""
        if (route := self._known.get(topic)) is not None:
            self._watched.setdefault(topic, (_broker_names(route), trio.current_time() + _WATCH_S))

    def _polled(self) -> set[str]:
        topics = set(self._published)
        for consumer in self._groups.consumers.values():
            topics.update(consumer.subscribed_topics())
        return topics

    async def _fetch(self, topic: str, fetch: _Fetch) -> None:
        try:
            fetch.route = await self._ask(topic)
            if fetch.route is None:
                self._watch(topic)
            else:
                self._take(topic, fetch.route)
                if not self._groups.failing and self._watched.get(topic, _UNWATCHED)[0] <= _broker_names(fetch.route):
                    self._watched.pop(topic, None)
        except REMOTE_ERRORS as exc:
            fetch.error = exc
        except trio.Cancelled:
            fetch.error = ClientClosedError("the client instance is closed")
            raise
        finally:
            del self._fetches[topic]
            fetch.done.set()

    async def _ask(self, topic: str) -> TopicRouteData | None:
        header = GetRouteInfoRequestHeader(topic, accept_standard_json_only=True)
        command = self._requests.command(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        response = await self._requests.invoke_namesrv(command)
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return read_route(raise_for_code(response, self._requests.name_servers.current).body)

    def _take(self, topic: str, route: TopicRouteData) -> None:
        before = self._known.get(topic)
        if same_route(before, route):
            self._known[topic] = self._known.pop(topic)
            if not self._brokers.agrees(route):
                self._rebuild()
            return
        if before is not None and not _broker_names(before) <= _broker_names(route):
            self._watch(topic)
        self._known.pop(topic, None)  # to the end: the newest answer of a name server counts
        self._known[topic] = route
        self._rebuild()
        if before is not None:
            LOGGER.info("route changed topic=%s", topic)
            if subscribe_queues(topic, before) == subscribe_queues(topic, route):
                return
        for consumer in tuple(self._groups.consumers.values()):
            if topic in consumer.subscribed_topics():
                consumer.route_changed(topic)

    def _rebuild(self) -> None:
        if self._brokers.rebuild(self._known.values()):
            self._groups.wake()


def _addresses(route: TopicRouteData | None, name: str) -> list[str]:
    brokers = [] if route is None else [broker for broker in route.broker_datas if broker.broker_name == name]
    return [address for broker in brokers for address in broker.broker_addrs.values()]


def _broker_names(route: TopicRouteData) -> frozenset[str]:
    return frozenset(broker.broker_name for broker in route.broker_datas)
