"""What a request needs: the rights on topics and groups, or an administrator.

RocketMQ leaves many requests unchecked, so that an account without any right reads and changes what it likes.  Here
each request of a client needs the rights on what it names, and every other one an administrator; ``needs_like_apache``
gives what RocketMQ checks.

Source: behaviour.md A.19; PlainAccessValidator.java.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias

from triomq.protocol.acl.accounts import PUB, SUB
from triomq.protocol.bodies.client import CheckClientRequestBody, HeartbeatData, LockBatchRequestBody
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import RefusedError
from triomq.protocol.names import RETRY_PREFIX, retry_topic
from triomq.protocol.wire.command import RemotingCommand


class Needs(NamedTuple):
    """Rights that an account must have.

    Attributes:
        rights: by topic, and by retry topic for a group.
        admin: whether only an administrator may do it.
    """

    rights: dict[str, int]
    admin: bool = False


Reader: TypeAlias = Callable[[RemotingCommand], Needs]
"""Returns what a request needs; raises RefusedError or ProtocolError if it does not say on what it acts."""

_NOTHING: Final = Needs({})
_ADMIN: Final = Needs({}, admin=True)
#: Clients send these, too, and they name nothing of others; RocketMQ never checks producer groups.
_FREE: Final = frozenset((RequestCode.END_TRANSACTION, RequestCode.GET_ROUTEINFO_BY_TOPIC))
_APACHE_ADMIN: Final = frozenset(
    (
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
    )
)
#: Brokers send these to name servers.
BROKER_REQUESTS: Final = frozenset(
    (RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER, RequestCode.QUERY_DATA_VERSION)
)
#: Code to the field that names the topic of a send.
SENDS: Final[dict[int, str]] = {
    RequestCode.SEND_MESSAGE: "topic",
    RequestCode.SEND_MESSAGE_V2: "b",
    RequestCode.SEND_BATCH_MESSAGE: "b",
    RequestCode.SEND_REPLY_MESSAGE: "topic",
    RequestCode.SEND_REPLY_MESSAGE_V2: "b",
    RequestCode.RECALL_MESSAGE: "topic",
}
#: Code to the fields that name topic and group of a consumer.
_READS: Final[dict[int, tuple[str | None, str | None]]] = {
    RequestCode.PULL_MESSAGE: ("topic", "consumerGroup"),
    RequestCode.LITE_PULL_MESSAGE: ("topic", "consumerGroup"),
    RequestCode.QUERY_CONSUMER_OFFSET: ("topic", "consumerGroup"),
    RequestCode.UPDATE_CONSUMER_OFFSET: ("topic", "consumerGroup"),
    RequestCode.QUERY_MESSAGE: ("topic", None),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: ("topic", None),
    RequestCode.GET_MAX_OFFSET: ("topic", None),
    RequestCode.GET_MIN_OFFSET: ("topic", None),
    RequestCode.GET_EARLIEST_MSG_STORETIME: ("topic", None),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: (None, "consumerGroup"),
    RequestCode.CONSUMER_SEND_MSG_BACK: (None, "group"),
}


_APACHE_READS: Final = frozenset(
    (
        RequestCode.PULL_MESSAGE,
        RequestCode.QUERY_MESSAGE,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.CONSUMER_SEND_MSG_BACK,
    )
)


def is_administration(code: int) -> bool:
    """Whether neither clients nor brokers send a request, but tools of administrators."""
    return not any(code in codes for codes in (SENDS, _READS, _BY_BODY, _FREE, BROKER_REQUESTS))


def needs(command: RemotingCommand) -> Needs:
    """Return what a request needs.

    Raises:
        RefusedError: the field that names its topic or group is missing.
        ProtocolError: its body cannot be read.
    """
    code = command.code
    sent_to = SENDS.get(code)
    if sent_to is not None:
        topic = _required(command, sent_to)
        return Needs({topic: SUB if topic.startswith(RETRY_PREFIX) else PUB})
    if code in _READS:
        topic_field, group_field = _READS[code]
        topics = [] if topic_field is None else [_required(command, topic_field)]
        groups = [] if group_field is None else [_required(command, group_field)]
        return _subscribing(topics, groups)
    reader = _BY_BODY.get(code)
    if reader is not None:
        return reader(command)
    return _NOTHING if code in _FREE else _ADMIN


def needs_like_apache(command: RemotingCommand) -> Needs:
    """Return what RocketMQ 4.9.7 checks.

    Raises:
        ProtocolError: its body cannot be read.
    """
    fields, code = command.ext_fields, command.code
    if code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2):
        topic = fields.get(SENDS[code])
        if topic is not None and topic.startswith(RETRY_PREFIX):  # 10 has no field "group", so nothing is checked
            return _subscribing((), (fields.get("group" if code == RequestCode.SEND_MESSAGE else "a"),))
        return Needs({} if topic is None else {topic: PUB})
    if code in _APACHE_ADMIN:
        return _ADMIN
    if code in _APACHE_READS:
        topic_field, group_field = _READS[code]
        return _subscribing((fields.get(topic_field or ""),), (fields.get(group_field or ""),))
    if code == RequestCode.UNREGISTER_CLIENT:
        return _subscribing((), (fields.get("consumerGroup"),))
    return _heartbeat(command) if code == RequestCode.HEART_BEAT else _NOTHING


def _required(command: RemotingCommand, name: str) -> str:
    value = command.ext_fields.get(name)
    if not value:
        raise RefusedError(f"request {command.code} does not say on what it acts: its field {name} is missing")
    return value


def _subscribing(topics: Iterable[str | None], groups: Iterable[str | None]) -> Needs:
    found = {topic: SUB for topic in topics if topic is not None}
    return Needs(found | {retry_topic(group): SUB for group in groups if group is not None})


def _heartbeat(command: RemotingCommand) -> Needs:
    consumers = HeartbeatData.decode(command.body).consumer_data_set
    topics = [subscription.topic for data in consumers for subscription in data.subscription_data_set]
    return _subscribing(topics, [data.group_name for data in consumers])


def _unregister(command: RemotingCommand) -> Needs:
    return _subscribing((), (command.ext_fields.get("consumerGroup") or None,))  # producers name none


def _lock(command: RemotingCommand) -> Needs:
    body = LockBatchRequestBody.decode(command.body)
    if not body.consumer_group:
        raise RefusedError(f"request {command.code} does not say on what it acts: it names no group")
    return _subscribing([queue.topic for queue in body.mq_set], (body.consumer_group,))


def _check_client(command: RemotingCommand) -> Needs:
    body = CheckClientRequestBody.decode(command.body)
    if not body.group or body.subscription_data is None:
        raise RefusedError(f"request {command.code} does not say on what it acts: it names no group and topic")
    return _subscribing((body.subscription_data.topic,), (body.group,))


_BY_BODY: Final[dict[int, Reader]] = {
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _unregister,
    RequestCode.LOCK_BATCH_MQ: _lock,
    RequestCode.UNLOCK_BATCH_MQ: _lock,
    RequestCode.CHECK_CLIENT_CONFIG: _check_client,
}
