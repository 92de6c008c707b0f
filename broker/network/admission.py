"""Decides whether one more connection may be: a broker that is out of open files can flush and map nothing."""

import logging
import resource
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from triomq.broker.server import Broker

LOGGER: Final = logging.getLogger("triomq.broker.network.admission")

_FILES_OF_OTHERS: Final = 64  # listeners, index, files that threads open for a moment
_LEAST_CONNECTIONS: Final = 64


class Admission:
    """Bounds the connections of a broker, so that its store always finds open files to use."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._is_refused = False

    def admits(self, sock: socket.socket) -> bool:
        """Tell whether an accepted connection may stay; if not, it is closed and counted."""
        broker = self._broker
        count, most = len(broker.connections), self._most_connections()
        if count < most:
            self._is_refused = False
            return True
        sock.close()
        broker.statistics.refused_connections += 1
        if not self._is_refused:
            LOGGER.warning(
                "connections are refused for now: %d of at most %d are open (max_connections %d, ulimit -n)",
                count,
                most,
                broker.config.max_connections,
            )
        self._is_refused = True
        return False

    def _most_connections(self) -> int:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = self._broker.config.max_connections
        if limit == resource.RLIM_INFINITY:
            return most
        left = limit - self._broker.store.max_open_files - _FILES_OF_OTHERS
        return min(most, max(left, _LEAST_CONNECTIONS))
