"""message_id: offset ids and unique ids."""

import time
from collections.abc import Iterator
from ipaddress import IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.protocol.errors import ProtocolError
from triomq.protocol.host import encode_host
from triomq.protocol.message_queue import PhysicalOffset
from triomq.protocol.record.message_id import UniqueIdGenerator, offset_message_id, parse_offset_message_id

ADDRESS = st.ip_addresses(v=4).map(str) | st.binary(min_size=16, max_size=16).map(IPv6Address).map(str)


def test_ipv6_offset_id_has_the_golden_form() -> None:
    text = "0000000000000000000000000000000100002A9F0000000000000400"
    assert offset_message_id(encode_host("::1", 10911), 1024) == text
    assert parse_offset_message_id(text) == ("::1", 10911, 1024)


@given(ADDRESS, st.integers(0, 65535), st.integers(0, 2**63 - 1))
def test_offset_id_survives_the_round_trip(ip: str, port: int, physical_offset: int) -> None:
    text = offset_message_id(encode_host(ip, port), PhysicalOffset(physical_offset))
    assert parse_offset_message_id(text) == (ip, port, physical_offset)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0A4D000100002A9F000000000000040",
        "0A4D000100002A9F00000000000004000",
        "0A4D000100002A9F000000000000040G",
        "0A 4D 00 01 00002A9F00000000 004",
        "0A4D0001FFFFFFFF0000000000000400",  # port
        "0A4D000100002A9FFFFFFFFFFFFFFFFF",  # negative offset
        "é" * 32,
    ],
)
def test_what_is_no_offset_id_is_protocol_error(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse_offset_message_id(text)


@pytest.fixture
def berlin() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_unique_id_has_the_golden_form() -> None:
    start_ms = 1_698_793_200_000  # 2023-11-01T00:00 in Berlin
    generator = UniqueIdGenerator(bytes((192, 168, 1, 10)), 0x1A2B, 0x18B4AAC2, lambda: start_ms + 0x16D2F36E)
    assert [generator.next(), generator.next()] == [
        "C0A8010A1A2B18B4AAC216D2F36E0000",
        "C0A8010A1A2B18B4AAC216D2F36E0001",
    ]


@pytest.mark.usefixtures("berlin")
def test_time_in_unique_id_restarts_each_month() -> None:
    now_ms = [1_701_385_199_999]  # the last ms of November in Berlin
    generator = UniqueIdGenerator(bytes(4), 0, 0, lambda: now_ms[0])
    assert generator.next()[20:] == f"{30 * 86_400_000 - 1:08X}0000"
    now_ms[0] += 1
    assert generator.next()[20:] == "000000000001"
    now_ms[0] += 31 * 86_400_000  # New Year
    assert generator.next()[20:] == "000000000002"


def test_clock_set_back_over_month_wraps() -> None:
    now_ms = [1_701_500_000_000]
    generator = UniqueIdGenerator(bytes(4), 0, 0, lambda: now_ms[0])
    generator.next()
    now_ms[0] -= 40 * 86_400_000
    assert len(generator.next()) == 32


def test_counter_of_unique_ids_wraps_at_16_bits() -> None:
    generator = UniqueIdGenerator(bytes(4), 0, 0, lambda: 1_700_000_000_000)
    ids = [generator.next() for _ in range(65537)]
    assert len(set(ids)) == 65536
    assert ids[0] == ids[65536]


def test_ipv6_unique_id_has_56_digits() -> None:
    generator = UniqueIdGenerator(b"\xfe" * 16, 2**22 + 0x1A2B, -1, lambda: 1_700_000_000_000)
    assert generator.next().startswith("FE" * 16 + "1A2B" + "FFFFFFFF")
    assert len(generator.next()) == 56


def test_address_of_another_length_is_refused() -> None:
    with pytest.raises(ProtocolError):
        UniqueIdGenerator(b"abc", 1, 1, lambda: 0)


def test_concurrently_created_ids_are_unique() -> None:
    generator = UniqueIdGenerator(bytes(4), 0, 0, lambda: 1_700_000_000_000)
    ids = [generator.next(), *generator.next_many(1000), generator.next(), *generator.next_many(10)]
    assert len(set(ids)) == 1012
    assert len({one[:-4] for one in ids}) == 1
