"""stats_bodies: what administration asks for."""

import pytest

from triomq.protocol.client_bodies import ConsumeFromWhere, SubscriptionData
from triomq.protocol.codes import LanguageCode
from triomq.protocol.json_body import JsonBody
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.stats_bodies import (
    Connection,
    ConsumerConnection,
    ConsumeStats,
    OffsetWrapper,
    ProducerConnection,
    TopicOffset,
    TopicStatsTable,
)

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
    (b'{"connectionSet":[' + CONNECTION_TEXT + b"]}", ProducerConnection([CONNECTION])),
    (
        b'{"connectionSet":[' + CONNECTION_TEXT + b'],"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
        b'"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","subscriptionTable":{"T":{'
        b'"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":1795214586962,'
        b'"tagsSet":[],"topic":"T"}}}',
        ConsumerConnection(
            [CONNECTION],
            {"T": SubscriptionData.of_tags("T", "*", 1795214586962)},
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
