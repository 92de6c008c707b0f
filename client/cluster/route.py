"""From routes to queues and addresses: pure functions, and the table of broker addresses.

Source: behaviour.md B.2 (route update, finding a broker), wire.md 9.4.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Final

from triomq.client.config import join_address, split_address
from triomq.protocol.bodies.route import ClusterInfo, TopicRouteData
from triomq.protocol.codes import Permission
from triomq.protocol.errors import ConfigError, NoRouteError, ProtocolError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.names import AUTO_CREATE_TOPIC

MASTER_ID: Final = 0
#: Queues that a client asks for in a topic it creates by sending (``defaultTopicQueueNums``).
DEFAULT_TOPIC_QUEUES: Final = 4

#: Limits of a route, which becomes an object for each part and each queue: 6,000 brokers, and the largest topic of one.
_MAX_ROUTE_BYTES: Final = 1024**2
_MAX_ROUTE_OBJECTS: Final = 20_000
_MAX_ROUTE_QUEUES: Final = 65_536
_MAX_DIGITS: Final = 10
_MAX_COMPARED: Final = 10_000  # topics, whose names are compared for a hint

Queues = tuple[MessageQueue, ...]


def read_route(body: bytes | memoryview) -> TopicRouteData:
    """Return the route in an answer of a name server.

    Raises:
        ProtocolError: it cannot be read, or is above a limit.
    """
    if len(body) > _MAX_ROUTE_BYTES or bytes(body).count(b"{") > _MAX_ROUTE_OBJECTS:
        raise ProtocolError(f"route of {len(body)} bytes: more than any cluster has")
    route = TopicRouteData.decode(body)
    queues = sum(max(data.read_queue_nums, data.write_queue_nums) for data in route.queue_datas)
    queues += sum(count for _, count in _order_counts(route.order_topic_conf or ""))
    if queues > _MAX_ROUTE_QUEUES:
        raise ProtocolError(f"route with {queues} queues: at most {_MAX_ROUTE_QUEUES} are read")
    return route


def masters_of_route(route: TopicRouteData) -> dict[str, str]:
    """Return the addresses of masters by broker name, sorted by name."""
    brokers = sorted(route.broker_datas, key=lambda broker: broker.broker_name)
    return {one.broker_name: one.broker_addrs[MASTER_ID] for one in brokers if MASTER_ID in one.broker_addrs}


def masters_of_cluster(info: ClusterInfo, cluster: str | None = None) -> dict[str, str]:
    """Return the addresses of all masters, or those of one cluster, by broker name, sorted by name.

    Raises:
        ConfigError: the cluster does not exist.
    """
    names: Iterable[str] = info.broker_addr_table
    if cluster is not None:
        if cluster not in info.cluster_addr_table:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise ConfigError(f"cluster {cluster!r} does not exist; the name server knows: {known}")
        names = info.cluster_addr_table[cluster]
    brokers = [info.broker_addr_table[name] for name in sorted(names) if name in info.broker_addr_table]
    return {one.broker_name: one.broker_addrs[MASTER_ID] for one in brokers if MASTER_ID in one.broker_addrs}


def publish_queues(topic: str, route: TopicRouteData) -> Queues:
    """Return the queues to send to, sorted: those of writable queue data whose broker has a master.

    An order topic has exactly the queues that its configuration lists, also while a broker is away.
    """
    if route.order_topic_conf:
        return tuple(_numbered(topic, _order_counts(route.order_topic_conf)))
    masters = masters_of_route(route)
    writable = [data for data in route.queue_datas if data.perm & Permission.WRITE and data.broker_name in masters]
    return tuple(sorted(_numbered(topic, ((data.broker_name, data.write_queue_nums) for data in writable))))


def subscribe_queues(topic: str, route: TopicRouteData) -> Queues:
    """Return the queues to consume, sorted: those of readable queue data, with or without a master."""
    readable = [data for data in route.queue_datas if data.perm & Permission.READ]
    return tuple(sorted(_numbered(topic, ((data.broker_name, data.read_queue_nums) for data in readable))))


def _numbered(topic: str, counts: Iterable[tuple[str, int]]) -> Iterator[MessageQueue]:
    """Yield the queues of a topic for the number of them on each broker."""
    return (MessageQueue(topic, name, queue_id) for name, count in counts for queue_id in range(count))


def _order_counts(configuration: str) -> Iterator[tuple[str, int]]:
    """Read ``broker-a:4;broker-b:4``; parts that cannot be read have no queues."""
    for part in configuration.split(";"):
        broker_name, _, count = part.rpartition(":")
        if broker_name and count.isdecimal() and len(count) < _MAX_DIGITS:
            yield broker_name, int(count)


def default_route(template: TopicRouteData) -> TopicRouteData:
    """Return the route that a topic will have once the first send created it from the default topic's."""
    queue_datas = []
    for data in template.queue_datas:
        number = min(DEFAULT_TOPIC_QUEUES, data.read_queue_nums)
        queue_datas.append(replace(data, read_queue_nums=number, write_queue_nums=number))
    return TopicRouteData(queue_datas=queue_datas, broker_datas=template.broker_datas)


class BrokerTable:
    """Addresses of all brokers in the known routes."""

    def __init__(self) -> None:
        self._addresses: dict[str, dict[int, str]] = {}

    def rebuild(self, routes: Iterable[TopicRouteData]) -> bool:
        """Take the brokers of these routes, oldest first, and no others; return whether there is a new address.

        Of each name the newest route counts: an older one may have a master that is away now.
        """
        before = self.addresses()
        self._addresses = {broker.broker_name: broker.broker_addrs for route in routes for broker in route.broker_datas}
        return not self.addresses().keys() <= before.keys()

    def agrees(self, route: TopicRouteData) -> bool:
        """Whether the brokers of a route are known with its addresses."""
        return all(self._addresses.get(broker.broker_name) == broker.broker_addrs for broker in route.broker_datas)

    def addresses(self) -> dict[str, tuple[str, int]]:
        """Return broker name and id of each address."""
        return {
            address: (name, broker_id)
            for name, brokers in self._addresses.items()
            for broker_id, address in brokers.items()
        }

    def find(self, broker_name: str, broker_id: int = MASTER_ID, only_this: bool = False) -> str | None:
        """Return the address of a broker, ``None`` if it is not known.

        Unless ``only_this``, another broker with the name replaces a missing id: the next slave, then any.
        """
        brokers = self._addresses.get(broker_name)
        if not brokers:
            return None
        if broker_id in brokers or only_this:
            return brokers.get(broker_id)
        if broker_id != MASTER_ID and broker_id + 1 in brokers:
            return brokers[broker_id + 1]
        return next(iter(brokers.values()))


def master_address(brokers: BrokerTable, broker_name: str) -> str:
    """Return the address of a broker's master.

    Raises:
        NoRouteError: it is in no known route.
    """
    address = brokers.find(broker_name, only_this=True)
    if address is None:
        raise NoRouteError(f"no master of broker {broker_name!r} is in a known route")
    return address


def dialled_address(advertised: str, name_server: str) -> str:
    """Return the port of an advertised address at the host where the name server was reached."""
    try:
        return join_address(split_address(name_server)[0], split_address(advertised)[1])
    except ConfigError:  # not an address: dialling it gives the error
        return advertised


def similar_names(kind: str, wanted: str, names: Sequence[str]) -> str:
    """Return a text with the names that resemble a wanted one; ``kind`` is "topic" or "group"."""
    if similar := get_close_matches(wanted, names[:_MAX_COMPARED], n=3, cutoff=0.6):
        return f"similar {kind}s: {', '.join(similar)}"
    return f"no {kind} has a similar name"


def explain_no_route(topic: str, asked: Sequence[str], topics: Sequence[str] | None, auto_create: bool | None) -> str:
    """Say which name servers were asked, what similar topics there are and how to create the topic.

    Args:
        topic: the topic without a route.
        asked: addresses of the name servers.
        topics: all topics of the name server, ``None`` if it has not listed them.
        auto_create: whether brokers seem to create topics when a client sends to them; ``None``: not known.
    """
    parts = [f"topic {topic!r} does not exist: it has no route (name server asked: {', '.join(asked)})"]
    if topics is not None:
        parts.append(similar_names("topic", topic, [name for name in topics if not name.startswith("%")]))
    if auto_create is not None:
        off = f"automatic creation seems off (no route to {AUTO_CREATE_TOPIC})"
        parts.append("automatic creation is on: the first send creates the topic" if auto_create else off)
    parts.append(f"create it with: triomq topic create {topic}")
    return "; ".join(parts)


def same_route(one: TopicRouteData | None, other: TopicRouteData) -> bool:
    """Whether two routes are equal, in any order."""
    return one is not None and _sorted_form(one) == _sorted_form(other)


def _sorted_form(route: TopicRouteData) -> tuple[object, ...]:
    queues = sorted((one.broker_name, one.read_queue_nums, one.write_queue_nums, one.perm) for one in route.queue_datas)
    brokers = sorted((data.broker_name, sorted(data.broker_addrs.items())) for data in route.broker_datas)
    return queues, brokers, route.order_topic_conf
