"""Bodies of registrations, as Apache's brokers write them."""

import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.protocol.bodies.registration import RegisterBrokerBody, read_registration, registration_crc
from triomq.protocol.bodies.route import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from triomq.protocol.errors import ProtocolError
from triomq.storage.reading.cold_read import finish

PLAIN = (
    b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":2,"timestamp":1795213957162},'
    b'"topicConfigTable":{"TopicA":{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
    b'"topicName":"TopicA","topicSysFlag":0,"writeQueueNums":4}}}}'
)
TOPICS = TopicConfigSerializeWrapper({"TopicA": TopicConfig("TopicA", 4, 4)}, DataVersion(1795213957162, 2))


def read(body: bytes, *, compressed: bool) -> TopicConfigSerializeWrapper:
    return finish(read_registration(body, compressed=compressed))


def part(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def compressed(*lines: bytes, count: int | None = None) -> bytes:
    version = part(b'{"counter":2,"timestamp":1795213957162}')
    number = (len(lines) if count is None else count).to_bytes(4, "big")
    return zlib.compress(b"".join((version, number, *map(part, lines), part(b"[]"))), 9)


def test_the_plain_body_equals_what_java_writes() -> None:
    assert RegisterBrokerBody(TOPICS).encode() == PLAIN
    assert read(PLAIN, compressed=False) == TOPICS


@pytest.mark.parametrize("line", [b"TopicA 4 4 6 SINGLE_TAG", b'TopicA 4 4 6 SINGLE_TAG {"+message.type":"NORMAL"}'])
def test_the_compressed_body_of_4_9_and_5_x_is_read(line: bytes) -> None:
    assert read(compressed(line), compressed=True) == TOPICS


def test_the_body_of_5_x_is_read() -> None:
    """It has members for static topics, whose maps may have numbers as keys."""
    body = PLAIN[:-2] + b',"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{"S":{"currIdMap":{0:1}}}}}'
    assert read(body, compressed=False) == TOPICS


def test_a_long_body_is_read_in_parts() -> None:
    topics = TopicConfigSerializeWrapper({name: TopicConfig(name) for name in map(str, range(1000))}, DataVersion(1, 2))
    body = RegisterBrokerBody(topics).encode()
    assert read(body, compressed=False) == topics
    assert len(list(read_registration(body, compressed=False))) > 3


def test_no_body_names_no_topics() -> None:
    assert read(b"", compressed=False) == TopicConfigSerializeWrapper()


@pytest.mark.parametrize(
    "body",
    [
        compressed(b"TopicA 4 4"),
        compressed(b"TopicA 4 x 6 SINGLE_TAG"),
        compressed(count=5),
        compressed(count=2**31 - 1),
    ],
)
def test_a_damaged_compressed_body_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="compressed registration"):
        read(body, compressed=True)


@given(content=st.binary(max_size=200), is_stream=st.booleans())
def test_any_bytes_give_topics_or_a_protocol_error(content: bytes, is_stream: bool) -> None:
    body = zlib.compress(content) if is_stream else content
    with suppress(ProtocolError):
        read(body, compressed=True)


def test_the_checksum_is_never_negative() -> None:
    assert registration_crc(b"abc") == 0x352441C2
    assert registration_crc(b"triomq") == zlib.crc32(b"triomq") & 0x7FFFFFFF
