"""The catalogue of requests: one row for each request code, with everything that a part of the program asks about it.

The problem: clients, brokers and administrators send about a hundred codes.  Rights, quotas, overload protection, the
audit and the name server each treat some of them alike.  When each part keeps a set of codes, the sets drift apart, and
a new code is missing from some of them without an error.

So a code has one row here, and the parts ask the row.  Most answers depend only on the kind of the request; ``Kind``
is a table of these.  The fields that name topics and groups are declared in the header classes.  The invariant: a code
without a row is refused, and a code with a row has an answer to each question.

To add a code: a member of ``RequestCode``, a header class, a row, and a method of a processor with the code's name.

Source: wire.md 4; RequestCode.java, BrokerController.java (which codes share a queue), PlainAccessValidator.java.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, TypeAlias

from triomq.protocol.bodies import route
from triomq.protocol.bodies.client import CheckClientRequestBody, HeartbeatData, LockBatchRequestBody
from triomq.protocol.codes import RequestCode as Code
from triomq.protocol.codes import ResponseCode
from triomq.protocol.java import read_properties
from triomq.protocol.requests import groups, messages, offsets, topics
from triomq.protocol.wire.headers import RESOURCES, Header, Resource


class Right(Enum):
    """What an account needs for a request."""

    NOTHING = auto()
    PUB = auto()  # on the topic; on a retry topic SUB, as only consumers send there
    SUB = auto()  # on all topics and groups that the request names
    ADMIN = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What requests have in common.

    Attributes:
        right: what an account needs.
        stores: whether the request counts as a send for quotas.
        reads: whether the answer holds messages, which count as read for quotas.
        is_shed: whether an overloaded broker refuses the request if it has waited too long: RocketMQ's send queue.
        is_frequent: whether honest peers send it all the time, so that a long step costs the peer nothing extra.
        has_region: whether answers, errors too, have the fields MSG_REGION and TRACE_ON, which Java clients read.
        is_question: whether the request changes nothing, so that it is not served if the peer takes no answer.
        is_for_name_server: whether the name server's port serves it too.
        changes_name_server: whether it is allowed on the name server's machine only.
        is_from_broker: whether only brokers send it.
        is_for_slaves: whether it is administration that slaves may send to every port.
        at_slave: the code with which a slave refuses it; ``None``: a slave serves it.
    """

    right: Right
    stores: bool = False
    reads: bool = False
    is_shed: bool = False
    is_frequent: bool = False
    has_region: bool = False
    is_question: bool = False
    is_for_name_server: bool = False
    changes_name_server: bool = False
    is_from_broker: bool = False
    is_for_slaves: bool = False
    at_slave: ResponseCode | None = None


_NO_STORE: Final = ResponseCode.SERVICE_NOT_AVAILABLE
SEND: Final = Kind(right=Right.PUB, stores=True, is_shed=True, is_frequent=True, has_region=True, at_slave=_NO_STORE)
#: RocketMQ sheds no replies.
REPLY: Final = Kind(right=Right.PUB, stores=True, is_frequent=True, has_region=True, at_slave=_NO_STORE)
RECALL: Final = Kind(right=Right.PUB, stores=True, at_slave=_NO_STORE)
SEND_BACK: Final = Kind(right=Right.SUB, stores=True, is_shed=True, at_slave=_NO_STORE)
#: Its processor wants PUB on the topic of the half message.
TRANSACTION: Final = Kind(right=Right.NOTHING, at_slave=ResponseCode.SLAVE_NOT_AVAILABLE)
PULL: Final = Kind(right=Right.SUB, reads=True, is_frequent=True)
QUERY: Final = Kind(right=Right.SUB, reads=True, is_question=True)
OFFSET: Final = Kind(right=Right.SUB, is_question=True)
COMMIT: Final = Kind(right=Right.SUB)
MEMBERSHIP: Final = Kind(right=Right.SUB)
ROUTE: Final = Kind(right=Right.NOTHING, is_question=True, is_for_name_server=True)
REGISTRATION: Final = Kind(right=Right.ADMIN, is_for_name_server=True, is_from_broker=True)
NAME_SERVER_STATE: Final = Kind(right=Right.ADMIN, is_question=True, is_for_name_server=True)
NAME_SERVER_CHANGE: Final = Kind(right=Right.ADMIN, is_for_name_server=True, changes_name_server=True)
#: Needs no account: brokers of one name ask each other, also Apache's, which sign nothing.
PUBLIC: Final = Kind(right=Right.NOTHING, is_question=True)
INSPECTION: Final = Kind(right=Right.ADMIN, is_question=True)
TABLE: Final = Kind(right=Right.ADMIN, is_question=True, is_for_slaves=True)
ADMINISTRATION: Final = Kind(right=Right.ADMIN)
#: Of what a slave has from its master.
COPIED_CHANGE: Final = Kind(right=Right.ADMIN, at_slave=ResponseCode.SYSTEM_ERROR)
TO_CLIENT: Final = Kind(right=Right.ADMIN)

Named: TypeAlias = Iterable[tuple[Resource, str]]

#: Limit of bodies that are read in one step: the broker's setting ``max_body_bytes``.
IN_ONE_STEP: Final = -1
_GROUP_BYTES: Final = 8 * 1024  # a subscription group takes a few hundred, but orjson cannot read fastjson's text
_SETTINGS_BYTES: Final = 64 * 1024  # all settings of Apache's brokers take 20 KiB
_TO_CLIENTS: Final = "brokers send it to clients"
_NO_ACCOUNTS: Final = "without --acl the broker has no accounts"


@dataclass(slots=True, eq=False)
class Request:
    """A row.

    Attributes:
        code: the number.
        kind: the properties that it shares with others.
        header: the class of its header; ``None``: no field of it is read.
        right: what an account needs; by default that of its kind.
        in_body: what the body names.
        names_in: reads the names in the body, for rights and the audit; raises ProtocolError.
        max_body_bytes: the limit of its body; 0: that of a frame; or ``IN_ONE_STEP``.
        refused: why a broker may not serve it; "": it always does.
        is_administration: whether only tools of administrators send it.
        is_restricted: whether some of them are refused although there are neither accounts nor quotas: by place, by the
            length of the body, or because the broker is overloaded.
    """

    code: Code
    kind: Kind
    header: type[Header] | None = None
    right: Right | None = None
    in_body: Resource | None = None
    names_in: Callable[[bytes | memoryview], Named] | None = None
    max_body_bytes: int = 0
    refused: str = ""
    is_administration: bool = field(init=False)
    is_restricted: bool = field(init=False)

    def __post_init__(self) -> None:
        self.right = self.right or self.kind.right
        self.is_administration = self.right is Right.ADMIN and not self.kind.is_from_broker
        self.is_restricted = self.right is Right.ADMIN or bool(self.max_body_bytes) or self.kind.is_shed

    @property
    def resources(self) -> tuple[tuple[str, Resource, bool], ...]:
        """The fields of the header that name something; see ``RESOURCES``."""
        return () if self.header is None else RESOURCES[self.header]


def _in_heartbeat(body: bytes | memoryview) -> Named:
    consumers = HeartbeatData.decode(body).consumer_data_set
    yield from ((Resource.TOPIC, each.topic) for data in consumers for each in data.subscription_data_set)
    yield from ((Resource.GROUP, data.group_name) for data in consumers)


def _in_lock(body: bytes | memoryview) -> Named:
    lock = LockBatchRequestBody.decode(body)
    yield from ((Resource.TOPIC, queue.topic) for queue in lock.mq_set)
    yield Resource.GROUP, lock.consumer_group


def _in_check(body: bytes | memoryview) -> Named:
    check = CheckClientRequestBody.decode(body)
    yield Resource.TOPIC, "" if check.subscription_data is None else check.subscription_data.topic
    yield Resource.GROUP, check.group


def _in_group(body: bytes | memoryview) -> Named:
    yield Resource.GROUP, route.SubscriptionGroupConfig.decode(body).group_name


def _in_groups(body: bytes | memoryview) -> Named:
    return [(Resource.GROUP, config.group_name) for config in route.GroupConfigList.decode(body).group_config_list]


def _in_topics(body: bytes | memoryview) -> Named:
    return [(Resource.TOPIC, config.topic_name) for config in route.TopicConfigList.decode(body).topic_config_list]


def _in_group_names(body: bytes | memoryview) -> Named:
    return [(Resource.GROUP, name) for name in route.GroupNameList.decode(body).group_name_list]


def _in_topic_names(body: bytes | memoryview) -> Named:
    return [(Resource.TOPIC, name) for name in route.TopicList.decode(body).topic_list]


def _in_settings(body: bytes | memoryview) -> Named:
    return [(Resource.SETTINGS, name) for name in read_properties(bytes(body).decode(errors="replace"))]


#: Requests that nothing here needs, by the reason for which they are refused.
_NOT_HERE: Final[Mapping[str, Iterable[Code]]] = {
    "members of a group share its queues among themselves": (
        Code.QUERY_ASSIGNMENT,
        Code.SET_MESSAGE_REQUEST_MODE,
        *map(Code, range(200_050, 200_057)),
        Code.BATCH_ACK_MESSAGE,
    ),
    "accounts, or the setting consumeEnable of a group, stop reading": (Code.UPDATE_AND_GET_GROUP_FORBIDDEN,),
    "queues, offsets and settings are in files, without RocksDB": (
        Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
        Code.EXPORT_ROCKSDB_CONFIG_TO_JSON,
        Code.SWITCH_TIMER_ENGINE,
    ),
    "topics are not static": (Code.UPDATE_AND_CREATE_STATIC_TOPIC,),
    "brokers register all of their topics": (Code.REGISTER_TOPIC_IN_NAMESRV,),
    "only slaves of RocketMQ copy it": (
        Code.GET_TIMER_CHECK_POINT,
        Code.GET_TIMER_METRICS,
        Code.GET_ALL_MESSAGE_REQUEST_MODE,
    ),
    "a process holds one broker": (Code.ADD_BROKER, Code.REMOVE_BROKER),
    "a slave finds out itself where its log continues": (Code.RESET_MASTER_FLUSH_OFFSET,),
    "masters and slaves need no controller": tuple(map(Code, (901, *range(904, 907), *range(1001, 1014)))),
    "cold reads run in worker threads, without limits of groups": tuple(map(Code, range(2001, 2005))),
    "there are no Lite topics": tuple(map(Code, range(200_070, 200_080))),
    "no broker of RocketMQ serves it": tuple(map(Code, (13, 22, 23, 27, 47, *range(209, 215), 301, 302))),
}

_ROWS: Final = (
    # --- messages ---------------------------------------------------------------------------------------
    Request(Code.SEND_MESSAGE, SEND, messages.SendMessageRequestHeader),
    Request(Code.SEND_MESSAGE_V2, SEND, messages.SendMessageRequestHeaderV2),
    Request(Code.SEND_BATCH_MESSAGE, SEND, messages.SendMessageRequestHeaderV2),
    Request(Code.SEND_REPLY_MESSAGE, REPLY, messages.SendMessageRequestHeader),
    Request(Code.SEND_REPLY_MESSAGE_V2, REPLY, messages.SendMessageRequestHeaderV2),
    Request(Code.RECALL_MESSAGE, RECALL, messages.RecallMessageRequestHeader),
    Request(Code.CONSUMER_SEND_MSG_BACK, SEND_BACK, messages.ConsumerSendMsgBackRequestHeader),
    Request(Code.END_TRANSACTION, TRANSACTION, messages.EndTransactionRequestHeader),
    Request(Code.PULL_MESSAGE, PULL, messages.PullMessageRequestHeader),
    Request(Code.LITE_PULL_MESSAGE, PULL, messages.PullMessageRequestHeader),
    Request(Code.QUERY_MESSAGE, QUERY, messages.QueryMessageRequestHeader),
    # The header names no topic, so it takes an administrator.
    Request(Code.VIEW_MESSAGE_BY_ID, QUERY, messages.ViewMessageRequestHeader, Right.ADMIN),
    # --- offsets ----------------------------------------------------------------------------------------
    Request(Code.QUERY_CONSUMER_OFFSET, OFFSET, offsets.QueryConsumerOffsetRequestHeader),
    Request(Code.UPDATE_CONSUMER_OFFSET, COMMIT, offsets.UpdateConsumerOffsetRequestHeader),
    Request(Code.SEARCH_OFFSET_BY_TIMESTAMP, OFFSET, offsets.SearchOffsetRequestHeader),
    Request(Code.GET_MAX_OFFSET, OFFSET, offsets.QueueRequestHeader),
    Request(Code.GET_MIN_OFFSET, OFFSET, offsets.QueueRequestHeader),
    Request(Code.GET_EARLIEST_MSG_STORETIME, OFFSET, offsets.QueueRequestHeader),
    # --- clients and groups -----------------------------------------------------------------------------
    Request(Code.HEART_BEAT, MEMBERSHIP, in_body=Resource.GROUP, names_in=_in_heartbeat),
    Request(Code.UNREGISTER_CLIENT, MEMBERSHIP, groups.UnregisterClientRequestHeader),
    Request(Code.GET_CONSUMER_LIST_BY_GROUP, MEMBERSHIP, groups.ConsumerGroupRequestHeader),
    Request(Code.LOCK_BATCH_MQ, MEMBERSHIP, in_body=Resource.GROUP, names_in=_in_lock, max_body_bytes=IN_ONE_STEP),
    Request(Code.UNLOCK_BATCH_MQ, MEMBERSHIP, in_body=Resource.GROUP, names_in=_in_lock, max_body_bytes=IN_ONE_STEP),
    Request(
        Code.CHECK_CLIENT_CONFIG, MEMBERSHIP, in_body=Resource.GROUP, names_in=_in_check, max_body_bytes=IN_ONE_STEP
    ),
    # --- name server ------------------------------------------------------------------------------------
    Request(Code.GET_ROUTEINFO_BY_TOPIC, ROUTE, topics.GetRouteInfoRequestHeader),
    Request(Code.REGISTER_BROKER, REGISTRATION, topics.RegisterBrokerRequestHeader),
    Request(Code.UNREGISTER_BROKER, REGISTRATION, topics.BrokerRequestHeader),
    Request(Code.QUERY_DATA_VERSION, REGISTRATION, topics.BrokerRequestHeader),
    Request(Code.PUT_KV_CONFIG, NAME_SERVER_CHANGE, topics.PutKvConfigRequestHeader),
    Request(Code.GET_KV_CONFIG, NAME_SERVER_STATE, topics.KvConfigRequestHeader),
    Request(Code.DELETE_KV_CONFIG, NAME_SERVER_CHANGE, topics.KvConfigRequestHeader),
    Request(Code.GET_KVLIST_BY_NAMESPACE, NAME_SERVER_STATE, topics.KvNamespaceRequestHeader),
    Request(Code.GET_BROKER_CLUSTER_INFO, NAME_SERVER_STATE),
    Request(Code.WIPE_WRITE_PERM_OF_BROKER, NAME_SERVER_CHANGE, topics.BrokerNameRequestHeader),
    Request(Code.ADD_WRITE_PERM_OF_BROKER, NAME_SERVER_CHANGE, topics.BrokerNameRequestHeader),
    Request(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, NAME_SERVER_STATE),
    Request(Code.GET_TOPICS_BY_CLUSTER, NAME_SERVER_STATE, topics.ClusterRequestHeader),
    Request(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, NAME_SERVER_STATE),
    Request(Code.GET_UNIT_TOPIC_LIST, NAME_SERVER_STATE),
    Request(Code.GET_HAS_UNIT_SUB_TOPIC_LIST, NAME_SERVER_STATE),
    Request(Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, NAME_SERVER_STATE),
    Request(Code.DELETE_TOPIC_IN_NAMESRV, NAME_SERVER_CHANGE, topics.TopicRequestHeader),
    Request(Code.UPDATE_NAMESRV_CONFIG, NAME_SERVER_CHANGE, names_in=_in_settings, max_body_bytes=_SETTINGS_BYTES),
    Request(Code.GET_NAMESRV_CONFIG, NAME_SERVER_STATE),
    # --- administration of a broker ---------------------------------------------------------------------
    Request(Code.UPDATE_AND_CREATE_TOPIC, COPIED_CHANGE, topics.CreateTopicRequestHeader),
    Request(Code.DELETE_TOPIC_IN_BROKER, COPIED_CHANGE, topics.TopicRequestHeader),
    Request(Code.GET_ALL_TOPIC_CONFIG, TABLE),
    Request(Code.GET_TOPIC_CONFIG, INSPECTION, topics.TopicRequestHeader),
    Request(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, INSPECTION),
    Request(Code.UPDATE_BROKER_CONFIG, ADMINISTRATION, names_in=_in_settings, max_body_bytes=_SETTINGS_BYTES),
    Request(Code.GET_BROKER_CONFIG, INSPECTION),
    Request(Code.GET_BROKER_RUNTIME_INFO, INSPECTION),
    Request(
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        COPIED_CHANGE,
        in_body=Resource.GROUP,
        names_in=_in_group,
        max_body_bytes=_GROUP_BYTES,
    ),
    Request(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, TABLE),
    Request(Code.GET_SUBSCRIPTIONGROUP_CONFIG, INSPECTION, groups.GroupRequestHeader),
    Request(Code.DELETE_SUBSCRIPTIONGROUP, COPIED_CHANGE, groups.DeleteSubscriptionGroupRequestHeader),
    Request(Code.GET_TOPIC_STATS_INFO, INSPECTION, topics.TopicRequestHeader),
    Request(Code.GET_CONSUMER_CONNECTION_LIST, INSPECTION, groups.ConsumerGroupRequestHeader),
    Request(Code.GET_PRODUCER_CONNECTION_LIST, INSPECTION, groups.ProducerGroupRequestHeader),
    Request(Code.GET_ALL_PRODUCER_INFO, INSPECTION),
    Request(Code.GET_CONSUME_STATS, INSPECTION, offsets.GetConsumeStatsRequestHeader),
    Request(Code.QUERY_TOPIC_CONSUME_BY_WHO, INSPECTION, topics.TopicRequestHeader),
    Request(Code.QUERY_CONSUME_TIME_SPAN, INSPECTION, offsets.QueryConsumeTimeSpanRequestHeader),
    Request(Code.QUERY_CONSUME_QUEUE, INSPECTION, offsets.QueryConsumeQueueRequestHeader),
    Request(Code.QUERY_CORRECTION_OFFSET, INSPECTION, offsets.QueryCorrectionOffsetHeader),
    Request(Code.VIEW_BROKER_STATS_DATA, INSPECTION, topics.ViewBrokerStatsDataRequestHeader),
    Request(Code.GET_BROKER_CONSUME_STATS, INSPECTION, offsets.GetBrokerConsumeStatsRequestHeader),
    Request(Code.GET_ALL_CONSUMER_OFFSET, TABLE),
    Request(Code.GET_ALL_DELAY_OFFSET, TABLE),
    Request(Code.GET_BROKER_HA_STATUS, INSPECTION),
    Request(Code.PROMOTE, ADMINISTRATION, topics.PromoteRequestHeader),
    Request(Code.GET_PROMOTION, PUBLIC),
    Request(Code.GET_LOG_CHECKSUM, TABLE, offsets.LogChecksumRequestHeader),
    Request(Code.CLONE_GROUP_OFFSET, COPIED_CHANGE, offsets.CloneGroupOffsetRequestHeader),
    Request(Code.DELETE_EXPIRED_COMMITLOG, ADMINISTRATION),
    Request(Code.CLEAN_EXPIRED_CONSUMEQUEUE, ADMINISTRATION),
    Request(Code.CLEAN_UNUSED_TOPIC, ADMINISTRATION),
    Request(Code.RESUME_CHECK_HALF_MESSAGE, COPIED_CHANGE, messages.ResumeCheckHalfMessageRequestHeader),
    # The broker passes these on to clients.
    Request(Code.INVOKE_BROKER_TO_RESET_OFFSET, ADMINISTRATION, offsets.ResetOffsetRequestHeader),
    Request(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ADMINISTRATION, offsets.GetConsumerStatusRequestHeader),
    Request(Code.GET_CONSUMER_RUNNING_INFO, ADMINISTRATION, groups.GetConsumerRunningInfoRequestHeader),
    Request(Code.CONSUME_MESSAGE_DIRECTLY, ADMINISTRATION, messages.ConsumeMessageDirectlyRequestHeader),
    # --- several topics or groups, of 5.x ---------------------------------------------------------------
    Request(Code.UPDATE_AND_CREATE_TOPIC_LIST, COPIED_CHANGE, names_in=_in_topics, max_body_bytes=IN_ONE_STEP),
    Request(
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, COPIED_CHANGE, names_in=_in_groups, max_body_bytes=IN_ONE_STEP
    ),
    Request(Code.DELETE_TOPIC_IN_BROKER_LIST, COPIED_CHANGE, names_in=_in_topic_names, max_body_bytes=IN_ONE_STEP),
    Request(Code.DELETE_SUBSCRIPTION_GROUP_LIST, COPIED_CHANGE, names_in=_in_group_names, max_body_bytes=IN_ONE_STEP),
    Request(Code.QUERY_TOPICS_BY_CONSUMER, INSPECTION, groups.GroupRequestHeader),
    Request(Code.QUERY_SUBSCRIPTION_BY_CONSUMER, INSPECTION, groups.QuerySubscriptionRequestHeader),
    # --- accounts ---------------------------------------------------------------------------------------
    Request(Code.UPDATE_AND_CREATE_ACL_CONFIG, ADMINISTRATION, groups.UpdateAccountRequestHeader, refused=_NO_ACCOUNTS),
    Request(Code.DELETE_ACL_CONFIG, ADMINISTRATION, groups.DeleteAccountRequestHeader, refused=_NO_ACCOUNTS),
    Request(Code.GET_BROKER_CLUSTER_ACL_INFO, INSPECTION, refused=_NO_ACCOUNTS),
    Request(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, ADMINISTRATION, refused=_NO_ACCOUNTS),
    Request(Code.GET_BROKER_CLUSTER_ACL_CONFIG, INSPECTION, refused=_NO_ACCOUNTS),
    # --- users and policies of 5.x ----------------------------------------------------------------------
    *(
        Request(code, kind, header, max_body_bytes=limit, refused=_NO_ACCOUNTS)
        for code, kind, header, limit in (
            (Code.AUTH_CREATE_USER, ADMINISTRATION, groups.UserRequestHeader, IN_ONE_STEP),
            (Code.AUTH_UPDATE_USER, ADMINISTRATION, groups.UserRequestHeader, IN_ONE_STEP),
            (Code.AUTH_DELETE_USER, ADMINISTRATION, groups.UserRequestHeader, 0),
            (Code.AUTH_GET_USER, INSPECTION, groups.UserRequestHeader, 0),
            (Code.AUTH_LIST_USER, INSPECTION, groups.ListUsersRequestHeader, 0),
            (Code.AUTH_CREATE_ACL, ADMINISTRATION, groups.SubjectRequestHeader, IN_ONE_STEP),
            (Code.AUTH_UPDATE_ACL, ADMINISTRATION, groups.SubjectRequestHeader, IN_ONE_STEP),
            (Code.AUTH_DELETE_ACL, ADMINISTRATION, groups.DeleteAclRequestHeader, 0),
            (Code.AUTH_GET_ACL, INSPECTION, groups.SubjectRequestHeader, 0),
            (Code.AUTH_LIST_ACL, INSPECTION, groups.ListAclsRequestHeader, 0),
        )
    ),
    # --- never served -----------------------------------------------------------------------------------
    Request(Code.CHECK_TRANSACTION_STATE, TO_CLIENT, messages.CheckTransactionStateRequestHeader, refused=_TO_CLIENTS),
    Request(Code.NOTIFY_CONSUMER_IDS_CHANGED, TO_CLIENT, groups.ConsumerGroupRequestHeader, refused=_TO_CLIENTS),
    Request(Code.RESET_CONSUMER_CLIENT_OFFSET, TO_CLIENT, offsets.ResetOffsetRequestHeader, refused=_TO_CLIENTS),
    Request(
        Code.GET_CONSUMER_STATUS_FROM_CLIENT, TO_CLIENT, offsets.GetConsumerStatusRequestHeader, refused=_TO_CLIENTS
    ),
    Request(Code.PUSH_REPLY_MESSAGE_TO_CLIENT, TO_CLIENT, messages.PushReplyMessageRequestHeader, refused=_TO_CLIENTS),
    *(Request(code, ADMINISTRATION, refused=reason) for reason, codes in _NOT_HERE.items() for code in codes),
)

#: All rows by code.
CATALOGUE: Final[Mapping[int, Request]] = {int(request.code): request for request in _ROWS}
