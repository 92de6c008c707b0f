import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.protocol.errors import ProtocolError
from triomq.protocol.host import encode_host
from triomq.protocol.record.record import MESSAGE_MAGIC, encode_record
from triomq.protocol.record.record_copy import pack_length, split_record

HOSTS = st.sampled_from([encode_host("127.0.0.1", 10911), encode_host("::1", 10912)])


def record(
    topic: bytes = b"SCHEDULE_TOPIC_XXXX",
    properties: bytes = b"TAGS\x01a",
    queue_id: int = 3,
    queue_offset: int = 4,
    physical_offset: int = 5,
    store_timestamp: int = 6,
    born_host: bytes = encode_host("127.0.0.1", 10911),
    store_host: bytes = encode_host("127.0.0.1", 10912),
    body: bytes = b"body",
    sys_flag: int = 1,
) -> bytes:
    return encode_record(
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        sys_flag=sys_flag,
        born_timestamp=1_795_000_000_000,
        born_host=born_host,
        store_timestamp=store_timestamp,
        store_host=store_host,
        body=body,
        topic=topic,
        properties=properties,
        flag=-7,
        reconsume_times=2,
        prepared_transaction_offset=9,
    )


@given(HOSTS, HOSTS, st.binary(max_size=300), st.binary(max_size=300), st.sampled_from([0, 1, 8]))
def test_the_parts_of_a_record_are_what_it_was_made_of(
    born_host: bytes, store_host: bytes, body: bytes, properties: bytes, sys_flag: int
) -> None:
    stored = record(
        properties=properties, born_host=born_host, store_host=store_host, body=body, sys_flag=sys_flag
    )  # fmt: skip
    head, rest, field = split_record(memoryview(stored))
    size, magic, body_crc, flag, born, store_timestamp, body_length = head
    assert (size, magic, flag, store_timestamp, body_length) == (len(stored), MESSAGE_MAGIC, -7, 6, len(body))
    assert (body_crc, born) == (stored[8:12], stored[36 : 48 + len(born_host)])
    assert rest == store_host + struct.pack(">iqi", 2, 9, len(body)) + body
    assert field == pack_length(len(properties)) + properties


@given(st.integers(0, 400), st.integers(0, 255), HOSTS)
def test_a_damaged_record_is_refused_or_read_within_its_bytes(at: int, value: int, host: bytes) -> None:
    damaged = bytearray(record(born_host=host))
    damaged[at % len(damaged)] = value
    try:
        _, rest, properties = split_record(memoryview(bytes(damaged)))
    except ProtocolError:
        return
    assert len(rest) + len(properties) < len(damaged)


@pytest.mark.parametrize("length", [0, 10, 90, 100, 119])
def test_a_part_of_a_record_is_none(length: int) -> None:
    with pytest.raises(ProtocolError, match="record of"):
        split_record(memoryview(record()[:length]))
    with pytest.raises(ProtocolError, match="record of"):
        split_record(
            memoryview(record(born_host=encode_host("::1", 1), store_host=encode_host("::1", 1), body=b"")[:100])
        )


def test_a_blank_record_is_none() -> None:
    blank = struct.pack(">ii", 200, -875286124) + bytes(192)
    with pytest.raises(ProtocolError, match="does not fit"):
        split_record(memoryview(blank))
