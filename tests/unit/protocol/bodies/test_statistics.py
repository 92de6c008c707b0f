"""stats_bodies: what administration asks for."""

import pytest

from tests.subscriptions import tag_subscription
from triomq.protocol.bodies.client import ConsumeFromWhere
from triomq.protocol.bodies.json_body import JsonBody
from triomq.protocol.bodies.statistics import (
    BrokerStatsData,
    BrokerStatsItem,
    Connection,
    ConsumerConnection,
    ConsumeStats,
    OffsetWrapper,
    ProducerConnection,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
    TopicOffset,
    TopicStatsTable,
)
from triomq.protocol.codes import LanguageCode
from triomq.protocol.message_queue import MessageQueue

QUEUE = MessageQueue("T", "broker-a", 0)
CONNECTION = Connection("10.0.0.9@9137#1928396301876", "10.0.0.9:49874", LanguageCode.JAVA, 407)
CONNECTION_TEXT = (
    b'{"clientAddr":"10.0.0.9:49874","clientId":"10.0.0.9@9137#1928396301876","language":"JAVA","version":407}'
)
GOLDEN: list[tuple[bytes, JsonBody]] = [
    (
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:{"lastUpdateTimestamp":1795214586595,'
        b'"maxOffset":2,"minOffset":0}}}',
        TopicStatsTable({QUEUE: TopicOffset(0, 2, 1795214586595)}),
    ),
    (
        b'{"consumeTps":0.0,"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:{"brokerOffset":2,'
        b'"consumerOffset":2,"lastTimestamp":1795214586595}}}',
        ConsumeStats({QUEUE: OffsetWrapper(2, 2, 1795214586595)}),
    ),
    (
        b'{"consumeTimeSpanSet":[{"consumeTimeStamp":1795315782931,"consumeTimeStampStr":"2026-11-22#02:49:42:931",'
        b'"delayTime":163,"maxTimeStamp":1795315783239,"maxTimeStampStr":"2026-11-22#02:49:43:239",'
        b'"messageQueue":{"brokerName":"broker-a","queueId":0,"topic":"T"},"minTimeStamp":1795315782775,'
        b'"minTimeStampStr":"2026-11-22#02:49:42:775"}]}',
        QueryConsumeTimeSpanBody(
            [
                QueueTimeSpan(
                    QUEUE,
                    1795315782775,
                    1795315783239,
                    1795315782931,
                    163,
                    "2026-11-22#02:49:42:775",
                    "2026-11-22#02:49:43:239",
                    "2026-11-22#02:49:42:931",
                )
            ]
        ),
    ),
    (
        b'{"statsDay":{"avgpt":0.0,"sum":0,"tps":0.0},"statsHour":{"avgpt":0.0,"sum":0,"tps":0.0},'
        b'"statsMinute":{"avgpt":6.25,"sum":25,"tps":0.4166666666666667}}',
        BrokerStatsData(BrokerStatsItem(25, 25 / 60, 6.25)),
    ),
    (b'{"connectionSet":[' + CONNECTION_TEXT + b"]}", ProducerConnection([CONNECTION])),
    (
        b'{"connectionSet":[' + CONNECTION_TEXT + b'],"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
        b'"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","subscriptionTable":{"T":{'
        b'"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":1795214586962,'
        b'"tagsSet":[],"topic":"T"}}}',
        ConsumerConnection(
            [CONNECTION],
            {"T": tag_subscription("T", "*", 1795214586962)},
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        ),
    ),
]


@pytest.mark.parametrize(("text", "body"), GOLDEN, ids=lambda value: type(value).__name__)
def test_body_equals_what_java_writes(text: bytes, body: JsonBody) -> None:
    assert body.encode() == text
    assert type(body).decode(text) == body


def test_unknown_language_is_other() -> None:
    assert Connection.decode(b'{"language":"COBOL"}').language is LanguageCode.OTHER
    assert Connection.decode(b'{"language":9}').language is LanguageCode.GO
