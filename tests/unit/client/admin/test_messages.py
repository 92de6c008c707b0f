"""Messages by key and by id, from several brokers."""

from collections.abc import AsyncGenerator

import pytest

from tests.records import make_record
from tests.unit.client.fake_broker import BrokerFactory, FakeBroker
from triomq.client.admin.admin import Admin
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import BrokerSystemError, ConfigError, NoRouteError, QueryNotFoundError
from triomq.protocol.host import encode_host
from triomq.protocol.record.message_id import offset_message_id
from triomq.protocol.record.properties import encode_properties
from triomq.protocol.requests.messages import QueryMessageRequestHeader
from triomq.protocol.wire.command import RemotingCommand

UNIQUE = "7F0000010A4B18B4AAC2000000000001"


def record(address: str, body: bytes, stored_ms: int, *, topic: str = "Topic", **properties: str) -> bytes:
    host, _, port = address.rpartition(":")
    return make_record(
        physical_offset=stored_ms,
        store_timestamp=stored_ms,
        store_host=encode_host(host, int(port)),
        body=body,
        topic=topic.encode(),
        properties=encode_properties(properties),
    )


@pytest.fixture
async def brokers(fake_broker: FakeBroker, make_broker: BrokerFactory) -> tuple[FakeBroker, FakeBroker]:
    """Two brokers with the topic; neither has a message."""
    other = await make_broker("broker-b")
    fake_broker.add_topic("Topic", 4, 6, other)
    for broker in (fake_broker, other):
        broker.fail(RequestCode.QUERY_MESSAGE, ResponseCode.QUERY_NOT_FOUND)
        broker.fail(RequestCode.VIEW_MESSAGE_BY_ID, ResponseCode.SYSTEM_ERROR, "can not find message by the offset")
    return fake_broker, other


@pytest.fixture
async def admin(brokers: tuple[FakeBroker, FakeBroker]) -> AsyncGenerator[Admin, None]:
    async with Admin(namesrv=brokers[0].address) as made:
        yield made


def answer(broker: FakeBroker, *records: bytes) -> None:
    broker.on(RequestCode.QUERY_MESSAGE, lambda command: command.reply(body=b"".join(records)))


@pytest.mark.parametrize(
    ("times", "is_found", "is_complete"),
    [
        ([5000 + 100 * number for number in range(200)], True, True),
        ([5000 + number for number in range(80)], True, False),  # of one second only the newest 64 come
        ([5000] * 200, True, False),
        ([1000] * 200, False, False),
    ],
    ids=["many seconds", "newer second", "newer millisecond", "same millisecond"],
)
async def test_key_behind_newer_keys_of_its_hash(
    brokers: tuple[FakeBroker, FakeBroker],
    admin: Admin,
    caplog: pytest.LogCaptureFixture,
    times: list[int],
    is_found: bool,
    is_complete: bool,
) -> None:
    broker = brokers[0]
    stored = [(1000, "Aa"), *((time, "BB") for time in times)]

    def newest(command: RemotingCommand) -> RemotingCommand:
        asked = QueryMessageRequestHeader.decode(command.ext_fields)
        hits = [
            record(broker.address, b"", time, KEYS=key)
            for time, key in stored
            if asked.begin_timestamp <= time // 1000 * 1000 <= asked.end_timestamp
        ]
        return command.reply(body=b"".join(hits[-min(asked.max_num, 64) :]))

    broker.on(RequestCode.QUERY_MESSAGE, newest)
    found = await admin.find_messages("Topic", "Aa")
    assert [message.keys for message in found] == [("Aa",)] * is_found
    assert ("search is incomplete" in caplog.text) is not is_complete


async def test_empty_result_is_no_error_but_refusal_is(brokers: tuple[FakeBroker, FakeBroker], admin: Admin) -> None:
    assert await admin.find_messages("Topic", "k") == []
    brokers[1].fail(RequestCode.QUERY_MESSAGE, ResponseCode.SYSTEM_ERROR)
    with pytest.raises(BrokerSystemError):
        await admin.find_messages("Topic", "k")
    with pytest.raises(NoRouteError):
        await admin.find_messages("Missing", "k")


@pytest.mark.parametrize(("key", "most"), [("", 1), ("a b", 1), ("a", 0)])
async def test_what_can_find_nothing_is_refused_here(
    brokers: tuple[FakeBroker, FakeBroker], admin: Admin, key: str, most: int
) -> None:
    with pytest.raises(ConfigError):
        await admin.find_messages("Topic", key, max_messages=most)
    assert not brokers[0].of(RequestCode.QUERY_MESSAGE)


async def test_newest_message_with_the_producers_id_wins(brokers: tuple[FakeBroker, FakeBroker], admin: Admin) -> None:
    """C.2 scenario 63."""
    broker = brokers[0]
    answer(
        broker,
        record(broker.address, b"first", 1000, UNIQ_KEY=UNIQUE),
        record(broker.address, b"2nd", 2000, UNIQ_KEY=UNIQUE),
    )
    assert (await admin.message(UNIQUE, "Topic")).body == b"2nd"
    (request, *_) = broker.of(RequestCode.QUERY_MESSAGE)
    assert request.ext_fields["_UNIQUE_KEY_QUERY"] == "true"


async def test_id_without_message_is_an_error(brokers: tuple[FakeBroker, FakeBroker], admin: Admin) -> None:
    with pytest.raises(QueryNotFoundError, match="name its topic"):
        await admin.message("no id")
    host, _, port = brokers[0].address.rpartition(":")
    with pytest.raises(QueryNotFoundError, match="no message with the id"):
        await admin.message(offset_message_id(encode_host(host, int(port)), 7))
