"""client_bodies: heartbeats, locks, offsets to reset, running info."""

from typing import Any

import pytest

from tests.subscriptions import tag_subscription
from triomq.protocol.bodies.client import (
    ConsumeFromWhere,
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumeResult,
    ConsumerIdList,
    ConsumerRunningInfo,
    ConsumeType,
    GetConsumerStatusBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageModel,
    ProducerData,
    ResetOffsetBody,
)
from triomq.protocol.bodies.json_body import JsonBody
from triomq.protocol.message_queue import MessageQueue

HEARTBEAT = (
    b'{"clientID":"10.0.0.9@25050#1300396891559","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
    b'"consumeType":"CONSUME_PASSIVELY","groupName":"CG","messageModel":"CLUSTERING","subscriptionDataSet":['
    b'{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG","subString":"TagA || TagB",'
    b'"subVersion":1795213958772,"tagsSet":["TagA","TagB"],"topic":"TopicA"},'
    b'{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":1795213958775,'
    b'"tagsSet":[],"topic":"%RETRY%CG"}],"unitMode":false}],'
    b'"producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"},{"groupName":"PG"}]}'
)
HEARTBEAT_BODY = HeartbeatData(
    "10.0.0.9@25050#1300396891559",
    [ProducerData("CLIENT_INNER_PRODUCER"), ProducerData("PG")],
    [
        ConsumerData(
            "CG",
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            subscription_data_set=[
                tag_subscription("TopicA", "TagA || TagB", 1795213958772),
                tag_subscription("%RETRY%CG", None, 1795213958775),
            ],
        )
    ],
)
QUEUE = MessageQueue("T", "broker-a", 0)
MQ = b'{"brokerName":"broker-a","queueId":0,"topic":"T"}'
GOLDEN: list[tuple[bytes, JsonBody]] = [
    (HEARTBEAT, HEARTBEAT_BODY),
    (b'{"consumerIdList":["10.0.0.9@25050#1300396891559"]}', ConsumerIdList(["10.0.0.9@25050#1300396891559"])),
    (
        b'{"clientId":"10.0.0.9@9137#1","consumerGroup":"G","mqSet":[' + MQ + b"]}",
        LockBatchRequestBody("10.0.0.9@9137#1", "G", [QUEUE]),
    ),
    (b'{"lockOKMQSet":[' + MQ + b"]}", LockBatchResponseBody([QUEUE])),
    (b'{"offsetTable":{' + MQ + b":5}}", ResetOffsetBody({QUEUE: 5})),
    (b'{"consumerTable":{},"messageQueueTable":{' + MQ + b":7}}", GetConsumerStatusBody({QUEUE: 7})),
    (
        b'{"consumerTable":{"c1":{' + MQ + b':7}},"messageQueueTable":{}}',
        GetConsumerStatusBody(consumer_table={"c1": {QUEUE: 7}}),
    ),
    (
        b'{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":3}',
        ConsumeMessageDirectlyResult(consume_result=ConsumeResult.CR_SUCCESS, spent_time_mills=3),
    ),
]


@pytest.mark.parametrize(("text", "body"), GOLDEN, ids=lambda value: type(value).__name__)
def test_body_equals_what_java_writes(text: bytes, body: JsonBody) -> None:
    assert body.encode() == text
    assert type(body).decode(text) == body


RUNNING_INFO = (
    b'{"jstack":"...","mqTable":{' + MQ + b':{"cachedMsgCount":0,"cachedMsgMaxOffset":0,"cachedMsgMinOffset":0,'
    b'"cachedMsgSizeInMiB":0,"commitOffset":2,"droped":false,"lastConsumeTimestamp":1795214587889,'
    b'"lastLockTimestamp":1795214586805,"lastPullTimestamp":1795214603484,"locked":true,"transactionMsgCount":0,'
    b'"transactionMsgMaxOffset":0,"transactionMsgMinOffset":0,"tryUnlockTimes":0}},'
    b'"properties":{"PROP_CLIENT_VERSION":"V4_9_7"},"statusTable":{"T":{"consumeFailedMsgs":0,"consumeFailedTPS":0.0,'
    b'"consumeOKTPS":0.5,"consumeRT":17.9,"pullRT":9.5,"pullTPS":0.5}},"subscriptionSet":[]}'
)


def test_running_info_equals_what_java_writes() -> None:
    info = ConsumerRunningInfo.decode(RUNNING_INFO)
    assert info.mq_table[QUEUE].locked
    assert info.mq_table[QUEUE].commit_offset == 2
    assert info.status_table["T"].consume_rt == 17.9
    assert info.encode() == RUNNING_INFO


def test_go_heartbeat_has_text_codes_and_nanosecond_version() -> None:
    text = HEARTBEAT.replace(b"[2598919,2598920]", b'["2598919","2598920"]').replace(
        b"1795213958772", b"1795213958772000000"
    )
    subscription = HeartbeatData.decode(text).consumer_data_set[0].subscription_data_set[0]
    assert subscription.code_set == [2598919, 2598920]
    assert subscription.sub_version == 1795213958772000000


@pytest.mark.parametrize(
    ("kind", "ordinals"),
    [
        (ConsumeType, ["CONSUME_ACTIVELY", "CONSUME_PASSIVELY"]),
        (MessageModel, ["BROADCASTING", "CLUSTERING"]),
        (ConsumeResult, ["CR_SUCCESS", "CR_LATER", "CR_ROLLBACK", "CR_COMMIT", "CR_THROW_EXCEPTION", "CR_RETURN_NULL"]),
    ],
)
def test_enums_stand_in_javas_order(kind: Any, ordinals: list[str]) -> None:
    assert [member.name for member in kind][: len(ordinals)] == ordinals


def test_offsets_for_cpp_are_list_and_read_back() -> None:
    body = ResetOffsetBody({QUEUE: 5})
    assert body.encode_for_cpp() == b'{"offsetTable":[{"brokerName":"broker-a","offset":5,"queueId":0,"topic":"T"}]}'
    assert ResetOffsetBody.decode(body.encode_for_cpp()) == body
