"""host: addresses in records."""

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from triomq.protocol.errors import ProtocolError
from triomq.protocol.host import decode_host, encode_host, format_host, pack_ip

PORT = st.integers(0, 65535)


@given(st.ip_addresses(v=4) | st.binary(min_size=16, max_size=16).map(IPv6Address), PORT)
def test_host_survives_the_round_trip(address: IPv4Address | IPv6Address, port: int) -> None:
    assume(isinstance(address, IPv4Address) or address.ipv4_mapped is None)
    host = encode_host(str(address), port)
    assert host == address.packed + port.to_bytes(4)
    assert decode_host(host) == (str(address), port)
    assert format_host(host) == (f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}")


def test_ipv4_written_as_ipv6_becomes_ipv4() -> None:
    assert encode_host("::ffff:10.77.0.1", 10911) == encode_host("10.77.0.1", 10911)
    assert pack_ip("fe80::1%eth0") == pack_ip("fe80::1")  # without its scope


NO_ADDRESSES = (
    *("", "localhost", "1.2.3", "1.2.3.4.5", "1.2.3.256", "01.2.3.4", " 1.2.3.4", "+1.2.3.4", "1_0.2.3.4", "::g"),
    "-1.2.3.4",
)


@pytest.mark.parametrize(
    ("ip", "port", "reason"),
    [
        *((ip, 1, "not a numeric IP address") for ip in NO_ADDRESSES),
        *(("10.0.0.1", port, "port") for port in (-1, 65536)),
    ],
)
def test_impossible_address_or_port_is_refused(ip: str, port: int, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        encode_host(ip, port)


@pytest.mark.parametrize("host", [b"", b"1234567", b"123456789", b"\x0a\0\0\x01\0\x01\0\0", b"\xff" * 8, bytes(21)])
def test_impossible_host_is_refused(host: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_host(host)
