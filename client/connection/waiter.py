"""A task that waits for the answer to a request, and for how long."""

from typing import Final

import trio

from triomq.protocol.wire.command import RemotingCommand

#: If the timer looks this late, this process was busy, and what arrived meanwhile may still be unread ...
_LATE_S: Final = 0.1
#: ... but is read by then.
_READ_S: Final = 0.02


class Waiter:
    """A task that waits for an answer; when it runs again ``response`` or ``error`` is set.

    Attributes:
        deadline: when to look at it next; if that is not put off then, the request has timed out.
    """

    __slots__ = ("_limit", "_silence_s", "deadline", "error", "response", "task")

    def __init__(self, task: trio.lowlevel.Task, deadline: float, silence_s: float) -> None:
        """Take the latest time of the answer, and the longest silence of the peer until then (0: any)."""
        self.task = task
        self.response: RemotingCommand | None = None
        self.error: Exception | None = None
        self.deadline = self._limit = deadline
        self._silence_s = silence_s
        if silence_s:
            self.deadline = min(deadline, trio.current_time() + silence_s / 2)

    def put_off(self, now: float, last_heard: float, probed_at: float) -> bool:
        """Put the deadline off unless the time is up or the peer is too silent; return whether to probe the peer.

        The peer is probed in the middle of the silence that is allowed, unless it owes the answer to a probe already.
        """
        if now >= self._limit:
            return False
        if now > self.deadline + _LATE_S:
            self.deadline = now + _READ_S
            return False
        due = last_heard + self._silence_s / 2
        wants_probe = due <= now and probed_at <= last_heard
        if due <= now:
            due = (now if wants_probe else probed_at) + self._silence_s / 2
        self.deadline = min(due, self._limit)
        return wants_probe
