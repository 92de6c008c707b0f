"""Limits the number of connections, so that the store always finds file descriptors to flush and map files.

Nobody can take all of them: an address may have some, the name server's ports and the others each leave the other kind
some, and the last ones are for this machine, so that an administrator still gets in.
"""

import logging
import resource
from collections import Counter
from collections.abc import Callable
from typing import Final

from triomq.broker.addresses import Address
from triomq.broker.config import ConnectionConfig
from triomq.broker.limits.rates import Quotas
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.protocol.event_log import EventLog

LOGGER: Final = logging.getLogger("triomq.broker.network.admission")

_OTHER_FILES: Final = 64  # listeners, index, files that threads open for a moment
_MIN_CONNECTIONS: Final = 64
_LEFT_FOR_OTHER_PORTS: Final = 8  # one in so many
_LEFT_FOR_LOOPBACK: Final = 32  # one in so many


class Admission:
    """Decides whether one more connection is accepted, and counts those that are open."""

    def __init__(
        self,
        config: ConnectionConfig,
        statistics: BrokerStatistics,
        files_of_store: Callable[[], int] = lambda: 0,
        quotas: Quotas | None = None,
    ) -> None:
        """Begin without connections.

        Args:
            config: the limits.
            statistics: counts those that are refused.
            files_of_store: returns how many files the store may open.
            quotas: may tell how many connections an address may have.
        """
        self._files_of_store = files_of_store
        self._quotas = quotas
        self._config = config
        self._statistics = statistics
        self._by_port: Counter[bool] = Counter()  # those of name servers' ports, and the others
        self._by_address: Counter[str] = Counter()
        self._log = EventLog(
            LOGGER, "connections refused since the start: %d; the last one from %s: %s", logging.WARNING
        )

    def admits(self, host: str, *, is_namesrv: bool) -> bool:
        """Return whether another connection of an address is accepted; it counts until :meth:`left`.

        ``is_namesrv`` tells that it comes to a port that serves only a name server's requests.
        """
        most_of_address: float
        limit, total, of_address = self.limit(), self._by_port.total(), self._by_address[host]
        others = limit - limit // _LEFT_FOR_LOOPBACK
        left_for_port = limit // _LEFT_FOR_OTHER_PORTS
        if Address(host, 0).is_loopback:
            most, most_of_address = limit, others - left_for_port
        else:
            most, most_of_address = others, self._config.max_connections_per_address or max(limit // 2, 1)
        kind, setting = "all", "max_connections_per_address"
        quota = None if self._quotas is None else self._quotas.connections_of(host)
        if quota is not None:
            most_of_address, setting = quota, "connections in the quotas"
        if total >= most or self._by_port[is_namesrv] >= most - left_for_port:
            reason = f"{total} of at most {limit} are open (max_connections {self._config.max_connections}, ulimit -n)"
        elif of_address >= most_of_address:
            kind = "address"
            reason = f"{of_address} of at most {most_of_address} are open from there ({setting})"
        else:
            self._by_port[is_namesrv] += 1
            self._by_address[host] += 1
            return True
        self._statistics.refused_connections += 1
        self._log.occurred(self._statistics.refused_connections, host, reason, key=kind)
        return False

    def left(self, host: str, *, is_namesrv: bool) -> None:
        """Count a closed connection no more."""
        self._by_port[is_namesrv] -= 1
        self._by_address[host] -= 1
        if not self._by_address[host]:
            del self._by_address[host]

    def limit(self) -> int:
        """Return how many connections may be open now."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files == resource.RLIM_INFINITY:
            return self._config.max_connections
        left = files - self._files_of_store() - _OTHER_FILES
        return min(self._config.max_connections, max(left, _MIN_CONNECTIONS))
