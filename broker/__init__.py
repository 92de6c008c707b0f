"""The broker: trio listeners, request processors and services over :mod:`triomq.storage`."""

from triomq.broker.addresses import Address
from triomq.broker.config import BrokerConfig, Listener, TlsConfig
from triomq.broker.opening import KeptBroker, keep_broker, open_broker
from triomq.broker.server import Broker

__all__ = ["Address", "Broker", "BrokerConfig", "KeptBroker", "Listener", "TlsConfig", "keep_broker", "open_broker"]
