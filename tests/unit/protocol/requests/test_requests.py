"""The typed headers against tables of names, kinds and optional fields copied from wire.md, not from the classes."""

from typing import Final

import pytest

from tests.unit.protocol.header_table import GOOD, check_kinds, check_names, check_required, full, header_classes, rows
from triomq.protocol.codes import RequestCode
from triomq.protocol.message_queue import PhysicalOffset, QueueOffset
from triomq.protocol.requests import groups, messages, offsets, topics
from triomq.protocol.requests.messages import (
    EndTransactionRequestHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    PushReplyMessageRequestHeader,
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from triomq.protocol.requests.offsets import OffsetResponseHeader, TimestampResponseHeader
from triomq.protocol.requests.topics import CreateTopicRequestHeader
from triomq.protocol.wire.headers import Header

#: Wire names in the order of the class; ``?`` may be absent.  Source: wire.md 5, 6.
TABLE: Final = {
    "SendMessageRequestHeader": """producerGroup:str topic:str defaultTopic:str defaultTopicQueueNums:int queueId:int
        sysFlag:int bornTimestamp:long flag:int properties:str? reconsumeTimes:int? unitMode:bool?
        maxReconsumeTimes:int? batch:bool? bname:str?""",
    "SendMessageRequestHeaderV2": """a:str b:str c:str d:int e:int f:int g:long h:int i:str? j:int? k:bool? l:int?
        m:bool? n:str?""",
    "PullMessageRequestHeader": """consumerGroup:str topic:str queueId:int queueOffset:long maxMsgNums:int sysFlag:int
        commitOffset:long suspendTimeoutMillis:long subVersion:long subscription:str? expressionType:str? bname:str?
        triomqMaxTransferBytes:int?""",
    "PullMessageResponseHeader": "suggestWhichBrokerId:long nextBeginOffset:long minOffset:long maxOffset:long",
    "QueryConsumerOffsetRequestHeader": """consumerGroup:str topic:str queueId:int setZeroIfNotFound:bool?
        bname:str?""",
    "UpdateConsumerOffsetRequestHeader": "consumerGroup:str topic:str queueId:int commitOffset:long bname:str?",
    "SearchOffsetRequestHeader": "topic:str queueId:int timestamp:long bname:str?",
    "QueueRequestHeader": "topic:str queueId:int bname:str?",
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
    "ResetOffsetRequestHeader": "topic:str group:str timestamp:long isForce:bool",
    "GetConsumerStatusRequestHeader": "topic:str group:str clientAddr:str?",
    "GetConsumerRunningInfoRequestHeader": "consumerGroup:str clientId:str jstackEnable:bool?",
    "ConsumeMessageDirectlyRequestHeader": "consumerGroup:str clientId:str? msgId:str? brokerName:str?",
    "QueryMessageRequestHeader": """topic:str key:str maxNum:int beginTimestamp:long endTimestamp:long
        _UNIQUE_KEY_QUERY:bool?""",
    "QueryMessageResponseHeader": "indexLastUpdateTimestamp:long indexLastUpdatePhyoffset:long",
    "PushReplyMessageRequestHeader": """producerGroup:str topic:str defaultTopic:str defaultTopicQueueNums:int
        queueId:int sysFlag:int bornTimestamp:long flag:int bornHost:str storeHost:str storeTimestamp:long
        properties:str? reconsumeTimes:int? unitMode:bool? bname:str?""",
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
    "GetRouteInfoRequestHeader": "topic:str acceptStandardJsonOnly:bool?",
    "PutKvConfigRequestHeader": "namespace:str key:str value:str",
    "KvConfigRequestHeader": "namespace:str key:str",
    "KvNamespaceRequestHeader": "namespace:str",
    "ClusterRequestHeader": "cluster:str",
    "BrokerRequestHeader": "brokerName:str brokerAddr:str clusterName:str brokerId:long",
    "RegisterBrokerRequestHeader": (
        "brokerName:str brokerAddr:str clusterName:str brokerId:long haServerAddr:str compressed:bool? bodyCrc32:int? "
        "enableActingMaster:bool?"
    ),
    "BrokerNameRequestHeader": "brokerName:str",
    "UpdateAccountRequestHeader": """accessKey:str admin:bool secretKey:str? whiteRemoteAddress:str?
        defaultTopicPerm:str? defaultGroupPerm:str? topicPerms:str? groupPerms:str?""",
    "DeleteAccountRequestHeader": "accessKey:str",
}

CLASSES: Final = {
    name: cls for module in (groups, messages, offsets, topics) for name, cls in header_classes(module).items()
}


def test_the_tables_know_every_header() -> None:
    assert set(TABLE) == set(CLASSES)


@pytest.mark.parametrize("name", list(TABLE))
def test_header_has_the_wire_names_of_the_table(name: str) -> None:
    check_names(CLASSES[name], TABLE[name])


@pytest.mark.parametrize("name", list(TABLE))
def test_header_has_the_kinds_of_the_table(name: str) -> None:
    check_kinds(CLASSES[name], TABLE[name])


@pytest.mark.parametrize("name", list(TABLE))
def test_header_demands_what_table_demands_and_no_more(name: str) -> None:
    check_required(CLASSES[name], TABLE[name])


def test_letters_of_v2_match_long_names() -> None:
    long, short = rows(TABLE["SendMessageRequestHeader"]), rows(TABLE["SendMessageRequestHeaderV2"])
    assert "".join(wire for wire, _, _ in short) == "abcdefghijklmn"
    assert [row[1:] for row in long] == [row[1:] for row in short]
    long_header = SendMessageRequestHeader.decode(full(TABLE["SendMessageRequestHeader"]))
    short_header = SendMessageRequestHeaderV2.decode(full(TABLE["SendMessageRequestHeaderV2"]))
    assert [getattr(long_header, name) for name in SendMessageRequestHeader.__slots__] == [
        getattr(short_header, name) for name in SendMessageRequestHeader.__slots__
    ]


@pytest.mark.parametrize(
    "header",
    [
        PullMessageResponseHeader(0, QueueOffset(0), QueueOffset(0), QueueOffset(0)),
        OffsetResponseHeader(QueueOffset(0)),
        TimestampResponseHeader(-1),
        QueryMessageResponseHeader(0, PhysicalOffset(0)),
    ],
)
def test_responses_write_zero_fields_as_text(header: Header) -> None:
    """Trap 3: a missing field is a NullPointerException in Java, a number that is no text a lost frame in Go."""
    encoded = header.encode()
    required = {wire for wire, _, required in rows(TABLE[type(header).__name__]) if required}
    assert required <= set(encoded)
    assert {type(text) for text in encoded.values()} == {str}


@pytest.mark.parametrize("sub_version", [0, 1_700_000_000_000, 1_700_000_000_000_000_000])
def test_sub_version_may_be_0_ms_or_ns(sub_version: int) -> None:
    """Trap 7: Go sends 0 here and nanoseconds in heartbeats."""
    fields = full(TABLE["PullMessageRequestHeader"]) | {"subVersion": str(sub_version)}
    assert PullMessageRequestHeader.decode(fields).sub_version == sub_version


@pytest.mark.parametrize(
    "message_id", ["C0A8010A1A2B18B4AAC216D2F36E0001", "c0a8010a1a2b18b4aac216d2f36e0001", "0", ""]
)
def test_message_ids_keep_their_case(message_id: str) -> None:
    """Trap 10: unique ids are opaque text, of which Go writes a part in lower case."""
    fields = full(TABLE["EndTransactionRequestHeader"]) | {"msgId": message_id}
    assert EndTransactionRequestHeader.decode(fields).msg_id == message_id


def test_end_transaction_carries_both_offsets_and_group() -> None:
    """Trap 11: the broker finds the half message by all three."""
    header = EndTransactionRequestHeader.decode(
        {
            "producerGroup": "PG",
            "tranStateTableOffset": "5",
            "commitLogOffset": "1024",
            "commitOrRollback": "8",
            "msgId": "X",
        }
    )
    assert (header.producer_group, header.tran_state_table_offset, header.commit_log_offset) == ("PG", 5, 1024)
    assert (header.commit_or_rollback, header.from_transaction_check, header.transaction_id) == (8, False, None)


def test_lite_pull_has_header_of_pull() -> None:
    """Trap 15: 361 is to be served like 11; what 5.x adds is ignored."""
    lite_pull_only = {
        "maxMsgBytes": "2147483647",
        "requestSource": "0",
        "proxyFrowardClientId": "",
        "lo": "true",
        "ReqT": "0",
    }
    header = PullMessageRequestHeader.decode(full(TABLE["PullMessageRequestHeader"]) | lite_pull_only)
    assert header.encode() == full(TABLE["PullMessageRequestHeader"])
    assert RequestCode(361) is RequestCode.LITE_PULL_MESSAGE


def test_a_send_of_go_is_read() -> None:
    """wire.md 15.1: long names, ``maxReconsumeTimes=0``."""
    header = SendMessageRequestHeader.decode(
        {
            "producerGroup": "PG",
            "topic": "T",
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": "0",
            "sysFlag": "0",
            "bornTimestamp": "1700000000000",
            "flag": "0",
            "properties": "TAGS\x01a",
            "reconsumeTimes": "0",
            "unitMode": "false",
            "maxReconsumeTimes": "0",
            "batch": "false",
            "bname": "broker-a",
        }
    )
    assert (header.queue_id, header.max_reconsume_times, header.batch, header.broker_name) == (0, 0, False, "broker-a")


def test_absent_counts_are_none_where_absence_means_something() -> None:
    """Without ``maxReconsumeTimes`` the group's setting counts, with 0 the message is dead at once."""
    fields = {wire: GOOD[kind] for wire, kind, required in rows(TABLE["SendMessageRequestHeaderV2"]) if required}
    header = SendMessageRequestHeaderV2.decode(fields)
    assert (header.reconsume_times, header.max_reconsume_times, header.properties) == (None, None, None)
    assert SendMessageRequestHeaderV2.decode(fields | {"l": "0"}).max_reconsume_times == 0
    assert (header.unit_mode, header.batch) == (False, False)


def test_push_reply_adds_hosts_and_store_time() -> None:
    """wire.md 6, code 326: neither a batch nor a limit of attempts, but both hosts and the time."""
    sent, pushed = rows(TABLE["SendMessageRequestHeader"]), rows(TABLE["PushReplyMessageRequestHeader"])
    assert set(sent) - set(pushed) == {("batch", "bool", False), ("maxReconsumeTimes", "int", False)}
    assert set(pushed) - set(sent) == {
        ("bornHost", "str", True),
        ("storeHost", "str", True),
        ("storeTimestamp", "long", True),
    }
    header = PushReplyMessageRequestHeader.decode(
        full(TABLE["PushReplyMessageRequestHeader"]) | {"bornHost": "10.0.0.9:49874", "storeHost": "10.0.0.5:10911"}
    )
    assert (header.born_host, header.store_host) == ("10.0.0.9:49874", "10.0.0.5:10911")


def test_query_may_ask_up_to_end_of_time() -> None:
    """wire.md 5.3: endTimestamp may be Long.MAX_VALUE."""
    header = QueryMessageRequestHeader.decode(full(TABLE["QueryMessageRequestHeader"]))
    assert header.end_timestamp == 2**63 - 1
    assert header.unique_key_query is True


def test_topic_of_5_x_with_attributes_is_read() -> None:
    fields = full(TABLE["CreateTopicRequestHeader"]) | {"force": "false"}
    assert CreateTopicRequestHeader.decode(fields).topic == "text"
