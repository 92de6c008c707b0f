"""A broker in a test: ``open_broker``, ``BrokerProcess``, and what the fixtures of pytest are made of.

It stands above broker and client, and nothing imports it but tests.
"""

from triomq.testing.host import SENDS, Group
from triomq.testing.running import BrokerProcess, RunningBroker, open_broker

__all__ = ["SENDS", "BrokerProcess", "Group", "RunningBroker", "open_broker"]
