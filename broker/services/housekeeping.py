"""Once a second: rates, idle connections, silent members, and members that get in each other's way."""

import logging
import time
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from triomq.broker.server import Broker

LOGGER: Final = logging.getLogger("triomq.broker.housekeeping")

_INTERVAL_S: Final = 1.0
_SCAN_INTERVAL_S: Final = 10.0


class Housekeeping:
    """What nobody waits for."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    async def run(self) -> None:
        """Work until cancelled."""
        broker = self._broker
        next_scan = trio.current_time() + _SCAN_INTERVAL_S
        while True:
            await trio.sleep(_INTERVAL_S)
            now = trio.current_time()
            broker.statistics.sample(now)
            broker.statistics.note_day(time.localtime(broker.clock_ms() // 1000).tm_yday)
            self._close_idle()
            broker.consumer_groups.check()
            broker.client_requests.expire(now)
            broker.stalls.scan(now)
            if now >= next_scan:
                next_scan = now + _SCAN_INTERVAL_S
                self._close_silent_members()
            broker.end_step()

    def _close_idle(self) -> None:
        limit = self._broker.config.idle_timeout_s
        for connection in list(self._broker.connections):
            connection.idle_s += _INTERVAL_S
            if connection.idle_s > limit:
                self._broker.statistics.idle_closed += 1
                connection.close(f"idle for {limit:.0f} s")

    def _close_silent_members(self) -> None:
        for connection in self._broker.consumer_groups.expired(self._broker.config.client_timeout_s):
            LOGGER.warning("connection closed peer=%s reason=no heartbeat", connection.peer)
            connection.close("no heartbeat")
        self._broker.producer_groups.drop_silent(self._broker.config.client_timeout_s)
