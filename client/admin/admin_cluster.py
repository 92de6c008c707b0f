"""The base of administration: an instance, the clusters, requests to brokers.

Source: wire.md 7 and 8.
"""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager

from triomq.client.cluster.instance import ClientInstance, use_instance
from triomq.client.cluster.route import MASTER_ID
from triomq.client.config import ClientConfig
from triomq.client.nursery import OpenOnce
from triomq.protocol.bodies.route import ClusterInfo
from triomq.protocol.errors import ClientClosedError, ConfigError, NoBrokerError
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.headers import Header


class ClusterAdmin(OpenOnce):
    """Reads the clusters and sends requests to their brokers; see :class:`triomq.client.admin.admin.Admin`."""

    def __init__(
        self,
        *,
        namesrv: str | Sequence[str] | None = None,
        instance: ClientInstance | None = None,
        config: ClientConfig | None = None,
    ) -> None:
        """Take name servers or an instance to share; nothing is connected before it is entered."""
        self._namesrv = namesrv
        self._given_instance = instance
        self._config = config
        self._instance: ClientInstance | None = None

    @asynccontextmanager
    async def _run(self) -> AsyncGenerator[None, None]:
        async with use_instance(self._namesrv, self._config, self._given_instance) as instance:
            self._instance = instance
            try:
                yield
            finally:
                self._instance = None

    async def cluster(self) -> ClusterInfo:
        """Return all brokers by cluster and name."""
        return await self._entered().routes.cluster()

    def _entered(self) -> ClientInstance:
        if self._instance is None:
            raise ClientClosedError("the admin is not open: use it inside its async with block")
        return self._instance

    async def _ask(self, address: str, code: int, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
        instance = self._entered()
        return await instance.requests.ask(address, code, header, body)

    async def _masters(self, cluster: str | None = None) -> list[str]:
        """Return the addresses of all masters, or those of one cluster, by broker name."""
        info = await self.cluster()
        names: Iterable[str] = info.broker_addr_table
        if cluster is not None:
            if cluster not in info.cluster_addr_table:
                known = ", ".join(sorted(info.cluster_addr_table)) or "none"
                raise ConfigError(f"cluster {cluster!r} does not exist; the name server knows: {known}")
            names = info.cluster_addr_table[cluster]
        brokers = [info.broker_addr_table[name] for name in sorted(names) if name in info.broker_addr_table]
        found = [broker.broker_addrs[MASTER_ID] for broker in brokers if MASTER_ID in broker.broker_addrs]
        if not found:
            raise NoBrokerError(
                f"name server {self._entered().requests.name_servers.current} knows no running master broker"
            )
        return found
