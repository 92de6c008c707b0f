"""Routes of topics: asked once for all who need one, kept, polled while they are in use.

Source: behaviour.md B.2 (route update).
"""

import logging
from typing import TYPE_CHECKING, Final

import trio

from triomq.client.answers import check
from triomq.client.cluster.route import (
    DEFAULT_TOPIC,
    BrokerTable,
    default_route,
    explain_no_broker,
    explain_no_route,
    same_route,
    subscribe_queues,
)
from triomq.protocol.bodies.route import ClusterInfo, TopicList, TopicRouteData
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import (
    BrokerResponseError,
    ClientClosedError,
    ClientError,
    NoBrokerError,
    NoRouteError,
    ProtocolError,
    TriomqError,
)
from triomq.protocol.requests.admin_requests import GetRouteInfoRequestHeader
from triomq.protocol.trouble_log import TroubleLog

if TYPE_CHECKING:
    from triomq.client.cluster.instance import ClientInstance

LOGGER: Final = logging.getLogger("triomq.client.cluster.routes")


class _Fetch:
    """A route on its way, for all who wait for it."""

    __slots__ = ("done", "error", "route")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.route: TopicRouteData | None = None
        self.error: TriomqError | None = None


class Routes:
    """The routes of one instance."""

    def __init__(self, instance: "ClientInstance") -> None:
        self._instance = instance
        self._known: dict[str, TopicRouteData] = {}
        self._fetches: dict[str, _Fetch] = {}
        self._published: set[str] = set()
        self._troubles = TroubleLog(LOGGER)
        self.brokers = BrokerTable()

    def known(self, topic: str) -> TopicRouteData | None:
        """Return the route as last heard."""
        return self._known.get(topic)

    async def find(self, topic: str, refresh: bool = False) -> TopicRouteData | None:
        """Return the route; see :meth:`ClientInstance.find_route`.  All who ask at a time share one request."""
        if not refresh and (known := self._known.get(topic)) is not None:
            return known
        self.refresh(topic)
        fetch = self._fetches[topic]
        await fetch.done.wait()
        if fetch.error is not None:
            raise fetch.error
        return fetch.route

    def refresh(self, topic: str) -> None:
        """Ask for the route again, without waiting for it."""
        if topic not in self._fetches:
            fetch = self._fetches[topic] = _Fetch()
            self._instance.nursery.start_soon(self._fetch, topic, fetch)

    def refresh_unpolled(self, topic: str) -> None:
        """Ask for a route again that :meth:`run` does not ask for, without waiting for it."""
        if topic not in self._polled():
            self.refresh(topic)

    async def publish(self, topic: str) -> TopicRouteData:
        """Return the route for sending; see :meth:`ClientInstance.publish_route`."""
        route = await self.find(topic)
        if route is None:
            template = await self.find(DEFAULT_TOPIC, refresh=True)  # nobody polls it
            if template is None:
                raise await self.no_route(topic)
            route = default_route(template)
        self._published.add(topic)
        return route

    async def topics(self) -> list[str]:
        """Return the names of all topics the name server knows, sorted."""
        command = self._instance.command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(TopicList.decode((await self._instance.invoke_namesrv_checked(command)).body).topic_list)

    async def cluster(self) -> ClusterInfo:
        """Return all brokers the name server knows, by cluster and name."""
        command = self._instance.command(RequestCode.GET_BROKER_CLUSTER_INFO)
        return ClusterInfo.decode((await self._instance.invoke_namesrv_checked(command)).body)

    async def no_route(self, topic: str) -> NoRouteError:
        """Make the error for a topic without route: who was asked, and what may be the reason.

        Brokers that are away take their topics with them, so where there is no broker nothing is said of the topic.
        """
        topics: list[str] | None = None
        auto_create: bool | None = None
        try:
            topics = await self.topics()
            auto_create = await self.find(DEFAULT_TOPIC) is not None
            if not (await self.cluster()).broker_addr_table:
                return NoBrokerError(explain_no_broker(topic, self._instance.name_servers))
        except (ClientError, BrokerResponseError, ProtocolError) as exc:
            LOGGER.info("no help for a missing topic topic=%s error=%s", topic, exc)
        return NoRouteError(explain_no_route(topic, self._instance.name_servers, topics, auto_create))

    async def run(self) -> None:
        """Ask again for all topics in use, in time."""
        while True:
            await trio.sleep(self._instance.config.poll_namesrv_interval_s)
            topics = self._polled()
            for topic in sorted(topics):
                try:
                    await self.find(topic, refresh=True)
                except (BrokerResponseError, ProtocolError) as exc:
                    LOGGER.warning("route not updated topic=%s error=%s", topic, exc)
                except ClientError as exc:
                    self._troubles.begin(None, "routes not updated topics=%d error=%s", len(topics), exc)
                    break
                else:
                    self._troubles.end(None, "routes are updated again")

    def _polled(self) -> set[str]:
        topics = set(self._published)
        for consumer in self._instance.consumers():
            topics.update(consumer.subscribed_topics())
        return topics

    async def _fetch(self, topic: str, fetch: _Fetch) -> None:
        header = GetRouteInfoRequestHeader(topic, accept_standard_json_only=True)
        command = self._instance.command(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        try:
            response = await self._instance.invoke_namesrv(command)
            if response.code != ResponseCode.TOPIC_NOT_EXIST:
                body = check(response, self._instance.name_server).body
                fetch.route = TopicRouteData.decode(body)
                self._take(topic, fetch.route)
        except (ClientError, BrokerResponseError, ProtocolError) as exc:
            fetch.error = exc
        except trio.Cancelled:
            fetch.error = ClientClosedError("the client instance is closed")
            raise
        finally:
            del self._fetches[topic]
            fetch.done.set()

    def _take(self, topic: str, route: TopicRouteData) -> None:
        before = self._known.get(topic)
        if same_route(before, route):
            return
        self._known.pop(topic, None)  # to the end: of brokers that moved, what was heard last counts
        self._known[topic] = route
        if self.brokers.rebuild(self._known.values()):
            self._instance.wake_heartbeat()
        if before is not None:
            LOGGER.info("route changed topic=%s", topic)
            if subscribe_queues(topic, before) == subscribe_queues(topic, route):
                return
        for consumer in self._instance.consumers():
            if topic in consumer.subscribed_topics():
                consumer.route_changed(topic)
