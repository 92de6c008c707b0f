"""The base of all parts of :class:`~triomq.client.admin.admin.Admin`: the instance, and requests to the masters."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from triomq.client.cluster.instance import ClientInstance, use_instance
from triomq.client.cluster.requests import Requests
from triomq.client.cluster.route import masters_of_cluster
from triomq.client.config import ClientConfig
from triomq.client.nursery import OpenOnce
from triomq.protocol.bodies.route import ClusterInfo, TopicRouteData
from triomq.protocol.errors import ClientClosedError, NoBrokerError
from triomq.protocol.typed import checked
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.headers import Header


class BaseAdmin(OpenOnce):
    """Requests to the name servers and masters of a cluster."""

    @checked
    def __init__(
        self,
        *,
        namesrv: str | Sequence[str] | None = None,
        instance: ClientInstance | None = None,
        config: ClientConfig | None = None,
    ) -> None:
        """Take name servers or an instance to share; nothing is connected before it is entered."""
        self._use_instance = partial(use_instance, namesrv, config, instance)
        self._instance: ClientInstance | None = None

    @asynccontextmanager
    async def _run(self) -> AsyncGenerator[None, None]:
        async with self._use_instance() as instance:
            self._instance = instance
            try:
                yield
            finally:
                self._instance = None

    async def cluster(self) -> ClusterInfo:
        """Return all brokers by cluster and name."""
        return await self._entered().routes.cluster()

    async def topics(self) -> list[str]:
        """Return the names of all topics, including system topics, sorted; with their namespaces."""
        return await self._entered().routes.topics()

    async def topic_route(self, topic: str) -> TopicRouteData:
        """Return the current route of a topic from the name server.

        Raises:
            NoRouteError: the topic does not exist; the text names similar topics.
        """
        return await self._entered().routes.topic_route(topic, refresh=True)

    def _entered(self) -> ClientInstance:
        if self._instance is None:
            raise ClientClosedError("the admin is not open: use it inside its async with block")
        return self._instance

    @property
    def _requests(self) -> Requests:
        return self._entered().requests

    async def _masters(self, cluster: str | None = None) -> dict[str, str]:
        """Return the addresses of all masters (of a cluster) by name."""
        found = masters_of_cluster(await self.cluster(), cluster)
        if not found:
            raise NoBrokerError(f"name server {self._requests.name_servers.current} knows no running master broker")
        return found

    def _master(self, broker_name: str) -> str:
        address = self._entered().brokers.find(broker_name)
        if address is None:
            raise NoBrokerError(f"broker {broker_name!r} has no master now")
        return address

    async def _ask_masters(
        self, code: int, header: Header | None = None, body: bytes = b"", cluster: str | None = None
    ) -> list[RemotingCommand]:
        """Send a request to all masters (of a cluster); return their answers."""
        return await self._requests.ask_each((await self._masters(cluster)).values(), code, header, body)
