"""Reads heartbeats: a client may have many groups and subscriptions, but not so many that others suffer.

Apache's brokers have no such limits.  A heartbeat beyond one of them is refused as a whole.
"""

from collections.abc import Iterable
from typing import Final

from triomq.broker.config import BrokerConfig
from triomq.broker.groups.groups import Groups
from triomq.broker.network.connection import Connection
from triomq.protocol.bodies.client import ConsumeType, HeartbeatData, MessageModel, SubscriptionData
from triomq.protocol.errors import RefusedError
from triomq.protocol.names import retry_topic, validate_topic

#: Client ids that are longer would make others' answers long; those of RocketMQ's clients have less than a hundred.
MAX_CLIENT_ID: Final = 1024
_MAX_GROUP: Final = 255
_MAX_TOPIC: Final = 512  # the retry topic of a group may be longer than a topic that exists
_MAX_MEMBERS: Final = 65_536  # of JSON objects and lists, such as tags and their codes
_ITEM_BYTES: Final = 16  # a tag or its code, in a heartbeat at least


def read_heartbeat(body: bytes | memoryview, config: BrokerConfig) -> HeartbeatData:
    """Read a heartbeat.

    Raises:
        RefusedError: it is too long, or has too many groups, subscriptions or other members, or too long names.
        ProtocolError: it cannot be read.
    """
    _check("bytes in a heartbeat", len(body), config.max_heartbeat_bytes, "max_heartbeat_bytes")
    body = bytes(body)  # counted before anything is made of it
    limit = 1 + config.max_client_groups + config.max_client_subscriptions
    _check("groups and subscriptions in a heartbeat", body.count(b"{"), limit, "max_client_subscriptions")
    _check("JSON members in a heartbeat", body.count(b","), _MAX_MEMBERS)
    heartbeat = HeartbeatData.decode(body)
    consumers, producers = heartbeat.consumer_data_set, heartbeat.producer_data_set
    topics = [each.topic for data in consumers for each in data.subscription_data_set]
    for what, names, longest in (
        ("client id", (heartbeat.client_id,), MAX_CLIENT_ID),
        ("group name", [data.group_name for data in consumers], _MAX_GROUP),
        ("group name", [data.group_name for data in producers], _MAX_GROUP),
        ("topic name", topics, _MAX_TOPIC),
    ):
        _check(f"characters in a {what}", max(map(len, names), default=0), longest)
    return heartbeat


def check_client(connection: Connection, heartbeat: HeartbeatData, groups: Groups, config: BrokerConfig) -> None:
    """Check what a connection has with this heartbeat and those before it.

    Raises:
        RefusedError: too many groups or subscriptions, or too long ones.
        IllegalNameError: a group needs a retry topic, and its name is too long for that.
    """
    for data in heartbeat.consumer_data_set:
        if data.consume_type != ConsumeType.CONSUME_ACTIVELY and data.message_model == MessageModel.CLUSTERING:
            validate_topic(retry_topic(data.group_name))
    consumers = groups.consumers.of(connection)
    consumers.update({data.group_name: data.subscription_data_set for data in heartbeat.consumer_data_set})
    producers = {*groups.producers.of(connection), *(data.group_name for data in heartbeat.producer_data_set)}
    subscriptions = [each for subscribed in consumers.values() for each in subscribed]
    count = len(consumers) + len(producers)
    _check("groups of one client", count, config.max_client_groups, "max_client_groups")
    _check(
        "subscriptions of one client", len(subscriptions), config.max_client_subscriptions, "max_client_subscriptions"
    )
    size = _size(subscriptions)
    _check("bytes of subscriptions of one client", size, config.max_heartbeat_bytes, "max_heartbeat_bytes")


def _size(subscriptions: Iterable[SubscriptionData]) -> int:
    return sum(
        len(each.topic) + len(each.sub_string) + _ITEM_BYTES * (len(each.tags_set) + len(each.code_set))
        for each in subscriptions
    )


def _check(what: str, count: int, limit: int, setting: str = "") -> None:
    if count > limit:
        name = f" ({setting})" if setting else ""
        raise RefusedError(f"{count} {what}: the limit is {limit}{name}", limit=setting or what)
