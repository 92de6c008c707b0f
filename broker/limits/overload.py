"""Overload: a broker that cannot keep up refuses sends at once, before it stores them.

The problem
    Producers can send faster than one thread stores.  The excess waits in the sockets, each send behind all earlier
    ones.  Soon the broker stores only messages whose producers have given up and sent them again.

What was rejected
    - A queue for sends: RocketMQ has one, and refuses sends at its head that have waited for too long.  Here a send is
      stored in the step that reads it; to move it through a queue would cost more than to store it.
    - A limit on rate or number: no setting fits all machines and disks.
    - The arrival time of each request: a mark of how full a socket was at the end of each read (FIONREAD) is more
      exact, for one more system call for each read and much more to explain.  At four times what the broker can do,
      accepted sends take 15 ms at the median either way; the slowest in a hundred take 0.3 s instead of 0.05 s.

What it is
    The age of the reader's round is the head of our queue.  The reader polls all sockets in rounds, so the bytes of
    one round arrived after the poll of the previous round: ``arrived_at``.  A read takes all that a socket
    holds, up to 256 KiB, so that few bytes wait longer.  A connection for which a step is not enough leaves the
    rounds for a while.  The bytes in its socket when it joins again arrived after it left, or after its last wait
    that was its own fault.

The invariant
    - A send is refused if it was late, that is, if more than ``max_send_wait_s`` has passed since ``arrived_at``.
      A refused send is never stored.  Pulls, offsets, heartbeats and decisions of transactions are always served.
    - Refusals begin when one connection has been late at each read for a second: a single stall of the disk refuses
      nothing.  From then on every late send is refused, until none was late for a second.

Source: behaviour.md A.1; BrokerFastFailure.java.
"""

import logging
from collections.abc import Iterator
from math import inf
from typing import Final, Protocol

import orjson

from triomq.broker.config import BrokerConfig
from triomq.broker.limits.refused import Refusals
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.protocol.codes import ResponseCode, SerializeType
from triomq.protocol.errors import RefusedError
from triomq.protocol.event_log import EventLog
from triomq.protocol.requests.catalogue import CATALOGUE
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import MAX_HEADER_BYTES, Frame, build_frame
from triomq.protocol.wire.header_formats import INT32_MAX

LOGGER: Final = logging.getLogger("triomq.broker.limits.overload")

_PATIENCE_S: Final = 1.0
_JSON: Final = int(SerializeType.JSON)
_HEADER_AT: Final = 4
_REMARK: Final = "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: %dms"


class _Peer(Protocol):
    peer: str
    late_since: float

    def send_frame(self, frame: bytes) -> None: ...


class Overload:
    """Decides when sends are refused, and refuses them."""

    def __init__(self, config: BrokerConfig, statistics: BrokerStatistics, refusals: Refusals) -> None:
        self._config = config
        self._statistics = statistics
        self._template = refusals.send_template(RefusedError(_REMARK, ResponseCode.SYSTEM_BUSY))
        self._refused_at = -inf
        self._log = EventLog(
            LOGGER, "sends refused as the broker is overloaded since_start=%d peer=%s waited_ms=%d", logging.WARNING
        )

    def check(self, peer: _Peer, now: float, arrived_at: float) -> None:
        """Check that a send need not be refused.

        Raises:
            RefusedError: it was late, and the broker is overloaded.
        """
        waited_ms = self.waited_ms(peer, now, arrived_at)
        if waited_ms:
            self._count(peer, now, waited_ms, 1)
            raise RefusedError(_REMARK % waited_ms, ResponseCode.SYSTEM_BUSY)

    def waited_ms(self, peer: _Peer, now: float, arrived_at: float) -> int:
        """Return the time that the sends of a read have waited, ms, if they must be refused for it, else 0.

        Also keeps ``peer.late_since``: time of the first late read, if all reads since were late, else 0.
        """
        waited_s = now - arrived_at
        if waited_s <= self._config.max_send_wait_s:
            peer.late_since = 0.0
            return 0
        peer.late_since = peer.late_since or now
        is_over = now - self._refused_at >= _PATIENCE_S
        if not self._config.max_send_wait_s or (is_over and now - peer.late_since < _PATIENCE_S):
            return 0
        return round(waited_s * 1000)

    def refuse_plain(self, peer: _Peer, frames: Iterator[Frame], now: float, waited_ms: int) -> RemotingCommand | None:
        """Refuse sends with a JSON header up to the next other request, and return that one; ``None`` at the end.

        Raises:
            ProtocolError: a frame cannot be read; those before it are answered.
        """
        answers: list[bytes] = []
        try:
            for frame in frames:
                opaque = _plain_opaque(frame)
                if opaque is None:
                    return RemotingCommand.decode(frame)
                answers.append(build_frame(_JSON, self._template % (opaque, waited_ms)))
        finally:
            if answers:
                self._count(peer, now, waited_ms, len(answers))
                peer.send_frame(b"".join(answers))
        return None

    def _count(self, peer: _Peer, now: float, waited_ms: int, sends: int) -> None:
        self._refused_at = now
        self._statistics.shed_sends += sends
        self._log.occurred(self._statistics.shed_sends, peer.peer, waited_ms)


def _plain_opaque(frame: Frame) -> int | None:
    """Return the opaque of a send with a JSON header that wants an answer; ``None`` for any other frame."""
    body_at = _HEADER_AT + int.from_bytes(frame[1:_HEADER_AT])
    if frame[0] != _JSON or not body_at <= len(frame) or body_at > MAX_HEADER_BYTES:
        return None
    try:
        fields = orjson.loads(frame[_HEADER_AT:body_at])
        opaque = fields["opaque"]
        request = CATALOGUE.get(fields["code"])
        is_plain = request is not None and request.kind.is_shed and fields["flag"] == 0
        return opaque if is_plain and type(opaque) is int and 0 <= opaque <= INT32_MAX else None
    except (ValueError, KeyError, TypeError):
        return None  # the general decoder reports the fault
