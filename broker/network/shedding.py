"""Refuses sends that have waited too long: a broker that cannot keep up says so at once, before it stores anything.

Nothing is measured for each request.  What a read brings has arrived after the round of reads before the last one
began; or, if the socket held more than a read takes, after an earlier look at how much it held.

Source: behaviour.md A.1; BrokerFastFailure.java.
"""

import fcntl
import logging
import sys
import termios
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from typing import Final, Protocol, TypeAlias, TypeVar

import orjson

from triomq.broker.config import BrokerConfig
from triomq.broker.limits.refused import Refusals
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.protocol.codes import CommandFlag, ResponseCode, SerializeType
from triomq.protocol.errors import RefusedError
from triomq.protocol.event_log import EventLog
from triomq.protocol.requests.catalogue import CATALOGUE
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import MAX_HEADER_BYTES, Frame, build_frame
from triomq.protocol.wire.header_format import INT32_MAX

LOGGER: Final = logging.getLogger("triomq.broker.network.shedding")

#: A single long wait refuses nothing: the disk may have stalled.
_PATIENCE_S: Final = 1.0
#: A read of less has emptied the socket: it takes 64 KiB, of which TLS may take its share.
FULL_READ_BYTES: Final = 32 * 1024
_JSON: Final = int(SerializeType.JSON)
_ONEWAY: Final = int(CommandFlag.ONEWAY)
_HEADER_AT: Final = 4
_REMARK: Final = "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: %dms"


class _Peer(Protocol):
    peer: str

    def send_frame(self, frame: bytes) -> None: ...


#: As in ``connection.py``.
_NextCommand: TypeAlias = Callable[[_Peer, Iterator[Frame]], RemotingCommand | None]
_Usual = TypeVar("_Usual")


class Arrivals:
    """When the bytes arrived that a socket holds.

    Attributes:
        marks: each is a moment, and the position in the stream up to which bytes had arrived then; none if the last
            read emptied the socket.
        late_since: when the first of those reads was that have all been late since then; 0: the last one was not.
    """

    __slots__ = ("_after", "_position", "late_since", "marks")

    def __init__(self) -> None:
        self.marks: list[tuple[float, int]] = []
        self.late_since = 0.0
        self._position = 0
        self._after = 0.0

    def read(self, size_bytes: int, since: float) -> float:
        """Count what was read; return a time after which it arrived, ``since`` if there is no mark."""
        marks = self.marks
        after = self._after if marks else since
        while marks and marks[0][1] <= self._position:
            after, _ = marks.pop(0)
        self._after = after
        self._position += size_bytes
        if size_bytes < FULL_READ_BYTES:
            marks.clear()
        return after

    def mark(self, now: float, waiting_bytes: int) -> None:
        """Note how much the socket holds now."""
        if waiting_bytes:
            self.marks.append((now, self._position + waiting_bytes))
        else:
            self.marks.clear()

    def restart(self, now: float) -> None:
        """Note that nothing that is in the socket, or comes from now on, has waited before."""
        self.marks[:] = [(now, self._position)]


def waiting_bytes(fileno: int) -> int:
    """Return how much a socket holds."""
    return int.from_bytes(fcntl.ioctl(fileno, termios.FIONREAD, bytes(4)), sys.byteorder)


class Shedding:
    """Decides when sends are refused, and refuses them.

    Who has been served late for a second is refused, and then whoever is late, until for a second nobody was.
    """

    def __init__(self, config: BrokerConfig, statistics: BrokerStatistics, refusals: Refusals) -> None:
        self._config = config
        self._statistics = statistics
        self._refusals = refusals
        self._template = refusals.send_template(RefusedError(_REMARK, ResponseCode.SYSTEM_BUSY))
        self._refused_at = -inf
        self._log = EventLog(
            LOGGER,
            "sends refused as the broker is overloaded since_start=%d peer=%s waited_ms=%d",
            logging.WARNING,
        )

    def next_command(self, arrivals: Arrivals, now: float, after: float, usual: _Usual) -> _Usual | _NextCommand:
        """Return what serves requests that arrived ``after`` then: as usual, or refusing sends."""
        waited_s = now - after
        if waited_s <= self._config.max_send_wait_s:
            arrivals.late_since = 0.0
            return usual
        arrivals.late_since = arrivals.late_since or now
        is_over = now - self._refused_at >= _PATIENCE_S
        if not self._config.max_send_wait_s or (is_over and now - arrivals.late_since < _PATIENCE_S):
            return usual
        return partial(self._refuse_sends, now, round(waited_s * 1000))

    def _refuse_sends(
        self, now: float, waited_ms: int, connection: _Peer, frames: Iterator[Frame]
    ) -> RemotingCommand | None:
        """Refuse frames up to the first that is no send, and return that one; ``None`` at the end.

        Raises:
            ProtocolError: a frame cannot be read; those before it are answered.
        """
        count = 0
        answers: list[bytes] = []
        try:
            for frame in frames:
                opaque = _plain_opaque(frame)
                if opaque is None:
                    command = RemotingCommand.decode(frame)
                    if not _is_shed(command.code) or command.is_response:
                        return command
                    if not command.is_oneway:
                        error = RefusedError(_REMARK % waited_ms, ResponseCode.SYSTEM_BUSY)
                        answers.append(self._refusals.response_to(connection.peer, command, error).encode())
                else:
                    header = self._template % (opaque, waited_ms)
                    answers.append(build_frame(_JSON, header))
                count += 1
        finally:
            if count:
                self._refused_at = now
                self._statistics.shed_sends += count
                self._log.occurred(self._statistics.shed_sends, connection.peer, waited_ms)
                if answers:
                    connection.send_frame(b"".join(answers))
        return None


def _is_shed(code: int) -> bool:
    request = CATALOGUE.get(code)
    return request is not None and request.kind.is_shed


def _plain_opaque(frame: Frame) -> int | None:
    """Return the opaque of a send with a JSON header that wants an answer; ``None`` for any other frame."""
    body_at = _HEADER_AT + int.from_bytes(frame[1:_HEADER_AT])
    if frame[0] != _JSON or not body_at <= len(frame) or body_at > MAX_HEADER_BYTES:
        return None
    try:
        fields = orjson.loads(frame[_HEADER_AT:body_at])
        opaque = fields["opaque"]
        is_plain = _is_shed(fields["code"]) and fields["flag"] == 0 and 0 <= opaque <= INT32_MAX
        return opaque if is_plain and type(opaque) is int else None
    except (ValueError, KeyError, TypeError):
        return None  # the general decoder reports what is wrong
