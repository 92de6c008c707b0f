"""Pulls of messages that are on the disk only: they are read in worker threads, and nobody else waits for them.

Rules: a few threads for all; a pull that finds too many others waiting is told to come again.
"""

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from triomq.broker.refusal import RequestRefusedError, remark_of, response_code
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import TriomqError
from triomq.storage.cold_read import ColdRange, ColdReads, read_ranges

if TYPE_CHECKING:
    from collections.abc import Callable

    from triomq.broker.connection import Connection
    from triomq.broker.server import Broker
    from triomq.protocol.command import RemotingCommand
    from triomq.protocol.requests import PullMessageRequestHeader
    from triomq.storage.consume_queue import ConsumeQueue

LOGGER: Final = logging.getLogger("triomq.broker.cold_pulls")

_THREADS: Final = 4
_MOST_WAITING: Final = 10_000
_MOST_ROUNDS: Final = 4  # units, records, and once more if memory is so short that they were dropped again


class ReadablePull(NamedTuple):
    """A pull that was checked: only its messages have to be read."""

    connection: "Connection"
    command: "RemotingCommand"
    header: "PullMessageRequestHeader"
    codes: frozenset[int] | None  # tag codes wanted; None: all
    queue: "ConsumeQueue"


class ColdPulls:
    """All pulls that wait for the disk.

    Attributes:
        waiting: how many there are.
        served: how many there were.
    """

    def __init__(self, broker: "Broker", answer: "Callable[[ReadablePull], None]") -> None:
        """Let pulls wait for ``broker``'s disk; ``answer`` answers one that no longer has to."""
        self.waiting = 0
        self.served = 0
        self._broker = broker
        self._answer = answer
        self._reads = ColdReads(broker.store.commit_log, broker.config.store)
        self._limiter = trio.CapacityLimiter(_THREADS)

    def take(self, pull: ReadablePull) -> bool:
        """Take a pull whose messages are not in memory; ``False`` if it can be answered at once.

        Raises:
            RequestRefusedError: too many wait already.
        """
        ranges = self._find(pull)
        if not ranges:
            return False
        if self.waiting >= _MOST_WAITING:
            raise RequestRefusedError(ResponseCode.SYSTEM_BUSY, f"{self.waiting} pulls wait for the disk: come again")
        self.waiting += 1
        self._broker.connection_nursery.start_soon(self._serve, pull, ranges)
        return True

    def _find(self, pull: ReadablePull) -> list[ColdRange]:
        return self._reads.find(pull.queue, pull.header.queue_offset, max(pull.header.max_msg_nums, 1), pull.codes)

    async def _serve(self, pull: ReadablePull, ranges: list[ColdRange]) -> None:
        connection = pull.connection
        try:
            for _ in range(_MOST_ROUNDS):
                await trio.to_thread.run_sync(read_ranges, ranges, limiter=self._limiter)
                ranges = self._find(pull)
                if not ranges:
                    break
            if not connection.closed:
                self._answer(pull)
        except TriomqError as exc:
            LOGGER.error("old messages cannot be read queue=%s error=%s", pull.queue, exc)
            connection.send(self._broker.refuse(connection, pull.command, response_code(exc), remark_of(exc)))
        except Exception as exc:  # boundary, as in Connection
            LOGGER.exception("cold pull failed peer=%s", connection.peer)
            text = f"{type(exc).__name__}: {remark_of(exc)}"
            connection.send(self._broker.refuse(connection, pull.command, ResponseCode.SYSTEM_ERROR, text))
        finally:
            self.waiting -= 1
            self.served += 1
        self._broker.end_step()
