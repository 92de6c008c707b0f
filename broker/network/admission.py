"""Limits the number of connections, so that the store always finds file descriptors to flush and map files."""

import logging
import resource
from collections.abc import Callable
from typing import Final

from triomq.protocol.failure_log import FailureLog

LOGGER: Final = logging.getLogger("triomq.broker.network.admission")

_OTHER_FILES: Final = 64  # listeners, index, files that threads open for a moment
_MIN_CONNECTIONS: Final = 64


class Admission:
    """Decides whether one more connection is accepted."""

    def __init__(self, max_connections: int, files_of_store: Callable[[], int] = lambda: 0) -> None:
        """``files_of_store`` returns how many files the store may open."""
        self._files_of_store = files_of_store
        self._max_connections = max_connections
        self._log = FailureLog(
            LOGGER,
            "connections are refused for now: %d of at most %d are open (max_connections %d, ulimit -n)",
            logging.WARNING,
        )

    def admits(self, connections: int) -> bool:
        """Return whether another connection is accepted beside so many."""
        limit = self._limit()
        if connections < limit:
            self._log.worked()
            return True
        self._log.failed(connections, limit, self._max_connections)
        return False

    def _limit(self) -> int:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files == resource.RLIM_INFINITY:
            return self._max_connections
        left = files - self._files_of_store() - _OTHER_FILES
        return min(self._max_connections, max(left, _MIN_CONNECTIONS))
