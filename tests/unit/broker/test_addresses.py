"""HOST:PORT in all its spellings, and what an address is called."""

import pytest

from triomq.broker.addresses import Address, is_in, limited_host, parse_networks, plain_ip, resolve_ip
from triomq.protocol.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:10911", "127.0.0.1", 10911),
        ("broker.example:0", "broker.example", 0),
        ("[::1]:9876", "::1", 9876),
        ("[fe80::1%eth0]:65535", "fe80::1%eth0", 65535),
    ],
)
def test_an_address_is_read_and_written_alike(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert address == (host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", "10911", "127.0.0.1", "host:", "host:-1", "host:65536", "host:1x", ":10911", "[]:1", "host:１x"]
)
def test_invalid_address_is_rejected_with_its_text(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        Address.parse(text)


def test_unbracketed_ipv6_address_is_rejected_with_example() -> None:
    with pytest.raises(ConfigError, match=r"brackets, as in \[::1\]:9876"):
        Address.parse("::1:9876")


@pytest.mark.parametrize(
    ("host", "is_loopback", "is_wildcard"),
    [
        ("127.0.0.1", True, False),
        ("127.9.9.9", True, False),
        ("::1", True, False),
        ("localhost", True, False),
        ("0.0.0.0", False, True),
        ("::", False, True),
        ("192.0.2.1", False, False),
        ("broker.example", False, False),
    ],
)
def test_who_can_reach_an_address_is_known(host: str, is_loopback: bool, is_wildcard: bool) -> None:
    address = Address(host, 1)
    assert address.is_loopback is is_loopback
    assert address.is_wildcard is is_wildcard


@pytest.mark.parametrize(
    ("host", "limited"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("::ffff:c000:201", "192.0.2.1"),
        ("2001:db8:0:1::5", "2001:db8:0:1::/64"),
        ("2001:db8:0:1:ffff:ffff:ffff:ffff", "2001:db8:0:1::/64"),
        ("2001:db8:0:2::5", "2001:db8:0:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::1"),
    ],
)
def test_limits_count_ipv6_addresses_by_network(host: str, limited: str) -> None:
    assert limited_host(host) == limited


@pytest.mark.parametrize(
    ("reported", "plain"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("::ffff:0:1", "::ffff:0:1"),
    ],
)
def test_ipv4_in_ipv6_form_becomes_plain_ipv4(reported: str, plain: str) -> None:
    assert plain_ip(reported) == plain


@pytest.mark.parametrize(
    ("host", "ip"), [("127.0.0.1", "127.0.0.1"), ("no such host", None), ("two..dots", None), ("x" * 64, None)]
)
def test_unknown_host_resolves_to_nothing(host: str, ip: str | None) -> None:
    assert resolve_ip(host) == ip


def test_networks_hold_their_addresses() -> None:
    networks = parse_networks("10.0.0.5, 10.1.0.0/16,fd00::/8")
    inside = ("10.0.0.5", "10.1.255.1", "fd12::1")
    assert [ip for ip in (*inside, "10.0.0.6", "10.2.0.1", "::1", "", "broker-a") if is_in(ip, networks)] == [*inside]
    assert not is_in("127.0.0.1", ())


@pytest.mark.parametrize("text", ["", "10.0.0.5,", "broker-a", "10.0.0.5/8", "10.0.0.*", "10.0.0.5:9876"])
def test_invalid_network_is_rejected_with_its_text(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not ADDRESS\[,ADDRESS/PREFIX"):
        parse_networks(text)
