"""Periodic work: rates, idle connections, silent members, conflicting members, stalled queues."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio

from triomq.broker.groups.groups import Groups
from triomq.broker.network.connection import ConnectionContext
from triomq.broker.services.stalls import StallWatch

LOGGER: Final = logging.getLogger("triomq.broker.services.housekeeping")

_INTERVAL_S: Final = 1.0
_SCAN_INTERVAL_S: Final = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class Housekeeping:
    """Runs once a second."""

    context: ConnectionContext
    groups: Groups
    stalls: StallWatch
    clock_ms: Callable[[], int]

    async def run(self) -> None:
        """Work until cancelled."""
        context = self.context
        next_scan = trio.current_time() + _SCAN_INTERVAL_S
        while True:
            await trio.sleep(_INTERVAL_S)
            now = trio.current_time()
            context.statistics.sample(now)
            context.statistics.note_day(time.localtime(self.clock_ms() // 1000).tm_yday)
            self._close_idle()
            self.groups.consumers.check()
            context.client_requests.expire(now)
            self.stalls.scan(now)
            if now >= next_scan:
                next_scan = now + _SCAN_INTERVAL_S
                self.remove_silent_members()
            context.steps.end()

    def _close_idle(self) -> None:
        limit = self.context.config.idle_timeout_s
        for connection in list(self.context.connections):
            connection.idle_s += _INTERVAL_S
            if connection.idle_s > limit:
                self.context.statistics.idle_closed += 1
                connection.close(f"idle for {limit:.0f} s")

    def remove_silent_members(self) -> None:
        """Close the connections of consumers, and forget producers, without a heartbeat for too long."""
        timeout_s = self.context.config.client_timeout_s
        for connection in self.groups.consumers.expired(timeout_s):
            LOGGER.warning("connection closed peer=%s reason=no heartbeat", connection.peer)
            connection.close("no heartbeat")
        self.groups.producers.drop_silent(timeout_s)
