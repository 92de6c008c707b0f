"""Who is in the group, although a broker that is back may not know all of its members yet.

A broker that restarts knows a member once that has connected again, which takes each of them up to a second.  Who is
first would seem to be alone: it would take over all queues, and give them up a moment later, and whatever was on its
way would come twice.  So for a while after a connection was lost and is back, members that were there before count as
there.  That delays nobody's first message: who comes new has lost no connection.  Only the queues of a member that
died together with its broker wait that long.
"""

from collections.abc import Collection
from math import inf

from triomq.client.consumer.offsets.remote_offsets import RETURN_S


class Membership:
    """The members as a consumer knows them."""

    def __init__(self) -> None:
        self._known: dict[str, frozenset[str]] = {}  # by topic
        self._until: dict[str, float] = {}  # by broker that was lost: from then on it is believed

    def broker_lost(self, broker_name: str) -> None:
        """Note that the connection to a broker has ended: it may know less when it is back."""
        self._until[broker_name] = inf

    def missing(self, topic: str, broker_name: str, told: Collection[str], now: float) -> frozenset[str]:
        """Return the members that count although the broker did not tell them; look again while there are some.

        Args:
            topic: whose queues are shared out.
            broker_name: who was asked.
            told: its answer.
            now: in trio's clock.
        """
        until = self._until.get(broker_name)
        if until == inf:
            until = self._until[broker_name] = now + RETURN_S
        if until is not None and now < until and (missing := self._known.get(topic, frozenset()).difference(told)):
            return missing
        self._until.pop(broker_name, None)
        self._known[topic] = frozenset(told)
        return frozenset()

    def forget(self, topic: str) -> None:
        """Forget a topic that is not subscribed to any more."""
        self._known.pop(topic, None)
