"""The typed headers against tables of names, kinds and optional fields copied from wire.md, not from the classes."""

from typing import Final

import pytest

from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import ProtocolError
from triomq.protocol.requests import groups, messages, offsets, topics
from triomq.protocol.requests.messages import (
    PullMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from triomq.protocol.wire.headers import Header

#: Wire names in the order of the class; ``?`` may be absent.  Source: wire.md 5, 6.
TABLE: Final = {
    "MessageHeader": """producerGroup:str topic:str defaultTopic:str defaultTopicQueueNums:int queueId:int sysFlag:int
        bornTimestamp:long flag:int""",
    "SendMessageRequestHeader": """producerGroup:str topic:str defaultTopic:str defaultTopicQueueNums:int queueId:int
        sysFlag:int bornTimestamp:long flag:int properties:str? reconsumeTimes:int? unitMode:bool?
        maxReconsumeTimes:int? batch:bool?""",
    "SendMessageRequestHeaderV2": """a:str b:str c:str d:int e:int f:int g:long h:int i:str? j:int? k:bool? l:int?
        m:bool?""",
    "PullMessageRequestHeader": """consumerGroup:str topic:str queueId:int queueOffset:long maxMsgNums:int sysFlag:int
        commitOffset:long suspendTimeoutMillis:long subVersion:long subscription:str? expressionType:str?
        triomqMaxTransferBytes:int?""",
    "PullMessageResponseHeader": "suggestWhichBrokerId:long nextBeginOffset:long minOffset:long maxOffset:long",
    "GroupQueueRequestHeader": "consumerGroup:str topic:str queueId:int",
    "QueryConsumerOffsetRequestHeader": """consumerGroup:str topic:str queueId:int setZeroIfNotFound:bool?""",
    "UpdateConsumerOffsetRequestHeader": "consumerGroup:str topic:str queueId:int commitOffset:long",
    "SearchOffsetRequestHeader": "topic:str queueId:int timestamp:long",
    "QueueRequestHeader": "topic:str queueId:int",
    "OffsetResponseHeader": "offset:long",
    "TimestampResponseHeader": "timestamp:long",
    "ViewMessageRequestHeader": "offset:long",
    "UnregisterClientRequestHeader": "clientID:str producerGroup:str? consumerGroup:str?",
    "ConsumerSendMsgBackRequestHeader": """offset:long group:str delayLevel:int originMsgId:str? originTopic:str?
        unitMode:bool? maxReconsumeTimes:int? bname:str?""",
    "EndTransactionRequestHeader": """producerGroup:str tranStateTableOffset:long commitLogOffset:long
        commitOrRollback:int msgId:str fromTransactionCheck:bool? transactionId:str? bname:str?""",
    "RecallMessageRequestHeader": "topic:str recallHandle:str producerGroup:str? bname:str?",
    "ResumeCheckHalfMessageRequestHeader": "msgId:str",
    "CheckTransactionStateRequestHeader": """tranStateTableOffset:long commitLogOffset:long msgId:str?
        transactionId:str? offsetMsgId:str? bname:str?""",
    "ConsumerGroupRequestHeader": "consumerGroup:str",
    "QuerySubscriptionRequestHeader": "group:str topic:str",
    "ResetOffsetRequestHeader": "topic:str group:str timestamp:long isForce:bool",
    "GetConsumerStatusRequestHeader": "topic:str group:str clientAddr:str?",
    "GetConsumerRunningInfoRequestHeader": "consumerGroup:str clientId:str",
    "ConsumeMessageDirectlyRequestHeader": "consumerGroup:str clientId:str? msgId:str? brokerName:str?",
    "QueryMessageRequestHeader": """topic:str key:str maxNum:int beginTimestamp:long endTimestamp:long
        _UNIQUE_KEY_QUERY:bool?""",
    "QueryMessageResponseHeader": "indexLastUpdateTimestamp:long indexLastUpdatePhyoffset:long",
    "PushReplyMessageRequestHeader": """producerGroup:str topic:str defaultTopic:str defaultTopicQueueNums:int
        queueId:int sysFlag:int bornTimestamp:long flag:int bornHost:str storeHost:str storeTimestamp:long
        properties:str? reconsumeTimes:int? unitMode:bool?""",
    # Java demands topicFilterType and order too, but reads neither of them
    "CreateTopicRequestHeader": """topic:str defaultTopic:str readQueueNums:int writeQueueNums:int perm:int
        topicFilterType:str? topicSysFlag:int? order:bool? attributes:str?""",
    "TopicRequestHeader": "topic:str clusterName:str?",
    "DeleteSubscriptionGroupRequestHeader": "groupName:str removeOffset:bool? cleanOffset:bool?",
    "GetConsumeStatsRequestHeader": "consumerGroup:str topic:str?",
    "GetBrokerConsumeStatsRequestHeader": "isOrder:bool",
    "QueryCorrectionOffsetHeader": "topic:str compareGroup:str? filterGroups:str?",
    "CloneGroupOffsetRequestHeader": "srcGroup:str destGroup:str topic:str? offline:bool?",
    "ProducerGroupRequestHeader": "producerGroup:str",
    "GroupRequestHeader": "group:str",
    "QueryConsumeTimeSpanRequestHeader": "topic:str group:str",
    "ViewBrokerStatsDataRequestHeader": "statsName:str statsKey:str",
    "QueryConsumeQueueRequestHeader": "topic:str queueId:int index:long count:int consumerGroup:str?",
    "LogChecksumRequestHeader": "begin:long end:long",
    "LogChecksum": "crc32:long minOffset:long maxOffset:long",
    "GetRouteInfoRequestHeader": "topic:str acceptStandardJsonOnly:bool?",
    "PutKvConfigRequestHeader": "namespace:str key:str value:str",
    "KvConfigRequestHeader": "namespace:str key:str",
    "KvNamespaceRequestHeader": "namespace:str",
    "ClusterRequestHeader": "cluster:str",
    "BrokerRequestHeader": "brokerName:str brokerAddr:str clusterName:str brokerId:long",
    "RegisterBrokerRequestHeader": (
        "brokerName:str brokerAddr:str clusterName:str brokerId:long haServerAddr:str compressed:bool? bodyCrc32:int? "
        "enableActingMaster:bool? triomqPromotedMs:long?"
    ),
    "BrokerNameRequestHeader": "brokerName:str",
    "PromoteRequestHeader": "role:str? force:bool?",
    "UpdateAccountRequestHeader": """accessKey:str admin:bool secretKey:str? whiteRemoteAddress:str?
        defaultTopicPerm:str? defaultGroupPerm:str? topicPerms:str? groupPerms:str?""",
    "DeleteAccountRequestHeader": "accessKey:str",
    # Source: the header classes of 5.5.0, which demand no field.
    "UserRequestHeader": "username:str",
    "ListUsersRequestHeader": "filter:str?",
    "SubjectRequestHeader": "subject:str",
    "DeleteAclRequestHeader": "subject:str resource:str?",
    "ListAclsRequestHeader": "subjectFilter:str? resourceFilter:str?",
}

GOOD: Final = {"str": "text", "int": "2147483647", "long": "9223372036854775807", "bool": "true"}
BAD: Final = {"int": "2147483648", "long": "9223372036854775808"}


def rows(line: str) -> list[tuple[str, str, bool]]:
    """Return wire name, kind and whether it is required."""
    cells = (cell.split(":") for cell in line.split())
    return [(wire, kind.rstrip("?"), not kind.endswith("?")) for wire, kind in cells]


def full(line: str) -> dict[str, str]:
    """Return every field of the line, each with the greatest value of its kind."""
    return {wire: GOOD[kind] for wire, kind, _ in rows(line)}


CLASSES: Final = {
    name: value
    for module in (groups, messages, offsets, topics)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, Header) and value is not Header
}


def test_the_table_knows_every_header() -> None:
    assert set(TABLE) == set(CLASSES)


@pytest.mark.parametrize("name", list(TABLE))
def test_header_has_names_and_kinds_of_the_table(name: str) -> None:
    """An ``int`` of Java ends at 2**31 - 1, a ``long`` at 2**63 - 1; any text is text; a bool knows no error."""
    cls, fields = CLASSES[name], full(TABLE[name])
    assert list(cls.decode(fields).encode().items()) == list(fields.items())
    for wire, kind, is_required in rows(TABLE[name]):
        if kind in BAD:
            with pytest.raises(ProtocolError, match=f"{name}: field '{wire}' is out of range"):
                cls.decode(fields | {wire: BAD[kind]})
        else:
            assert cls.decode(fields | {wire: "a"}).encode()[wire] == ("a" if kind == "str" else "false")
        others = {other: text for other, text in fields.items() if other != wire}
        if is_required:
            with pytest.raises(ProtocolError, match=f"{name}: field '{wire}' is missing"):
                cls.decode(others)
        else:
            cls.decode(others)


def test_lite_pull_has_header_of_pull() -> None:
    """Trap 15: 361 is to be served like 11; what 5.x adds is ignored."""
    lite_pull_only = {"maxMsgBytes": "2147483647", "requestSource": "0", "proxyFrowardClientId": "", "lo": "true"}
    header = PullMessageRequestHeader.decode(full(TABLE["PullMessageRequestHeader"]) | lite_pull_only)
    assert header.encode() == full(TABLE["PullMessageRequestHeader"])
    assert RequestCode(361) is RequestCode.LITE_PULL_MESSAGE


def test_absent_counts_are_none_where_absence_means_something() -> None:
    """Without ``maxReconsumeTimes`` the group's setting counts, with 0 the message is dead at once."""
    fields = {wire: GOOD[kind] for wire, kind, required in rows(TABLE["SendMessageRequestHeaderV2"]) if required}
    header = SendMessageRequestHeaderV2.decode(fields)
    assert (header.reconsume_times, header.max_reconsume_times, header.properties) == (None, None, None)
    assert SendMessageRequestHeaderV2.decode(fields | {"l": "0"}).max_reconsume_times == 0
    assert (header.unit_mode, header.batch) == (False, False)
