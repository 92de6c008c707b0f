from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.protocol.acl.addresses import parse_pattern, union
from triomq.protocol.errors import ConfigError


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("", (), ("127.0.0.1", "::1")),
        ("*", ("127.0.0.1", "::1", "@unix"), ()),
        ("*.*.*.*", ("10.0.0.1",), ()),
        ("*:*:*:*:*:*:*:*", ("fe80::1",), ()),
        ("10.0.0.1", ("10.0.0.1", "::ffff:10.0.0.1"), ("10.0.0.10", "10.0.0.2", "", "name")),
        ("10.0.0.1,10.0.0.3", ("10.0.0.1", "10.0.0.3"), ("10.0.0.2",)),
        ("10.0.0.{1,3}", ("10.0.0.1", "10.0.0.3"), ("10.0.0.2", "10.0.0.13")),
        ("10.0.0.1-20", ("10.0.0.1", "10.0.0.20"), ("10.0.0.0", "10.0.0.21", "10.0.1.1")),
        ("10.0.5-6.*", ("10.0.5.0", "10.0.6.255"), ("10.0.4.1", "10.1.5.1")),
        ("10.1-2.*.*", ("10.1.0.0", "10.2.9.9"), ("10.3.0.0", "110.1.0.0")),
        ("127.*.*.*", ("127.9.9.9",), ("128.0.0.1",)),
        ("FE80::1", ("fe80::1", "fe80:0:0:0:0:0:0:1", "fe80::1%eth0"), ("fe80::2",)),
        ("fe80::{1,a}", ("fe80::1", "fe80::A"), ("fe80::2",)),
        ("fe80::1:*", ("fe80::1:0", "fe80::1:ffff"), ("fe80::2:1", "fe80:1::1:1")),
        ("fe80::1:10-20", ("fe80::1:10", "fe80::1:20"), ("fe80::1:21", "fe80::1:f")),
        ("2::ac5:78:1-200:*", ("2::ac5:78:1:9", "2::ac5:78:200:0"), ("2::ac5:78:201:0", "2::ac5:79:1:0")),
        ("2001:db8:1:2:*", ("2001:db8:1:2::", "2001:db8:1:2:ffff::9"), ("2001:db8:1:3::",)),
        ("1:2:3:4:5:6:7:*", ("1:2:3:4:5:6:7:8",), ("1:2:3:4:5:6:8:8",)),
        ("::1:*", ("::1:5",), ("::2:5", "1::1:5")),
    ],
)
def test_a_pattern_names_what_it_says(pattern: str, inside: tuple[str, ...], outside: tuple[str, ...]) -> None:
    found = parse_pattern(pattern)
    assert [host for host in inside if not found.has(host)] == []
    assert [host for host in outside if found.has(host)] == []


MISREAD = [
    "127.*.0.5", "*.0.0.5", "1-5.*.*.*", "127.0.0.1*", "10.0.0.0-0", "10.0.0.5-1", "10.0.0.1-300", "10.0.0.1-2-3",
    "010.0.0.*", "10.300.*.*", "10.0.1-5", "10.0.0.-5", "127.0.0.0/8", "localhost", "10.0.0", "10.0.0.1.2",
    "10.0.0.01", "10.0.0.1,", "{1,2}", "fe80::}", "10.0.0.1{2,3}", "10.0.{1,2}.{3,4}", "::*", "fe80::*", "fe80::1-5",
    "fe80::1-5:*", "1:2:3:1-5", ":1:*", "1::2::3:*", "1:2:3:4:5:6:7:8:*", "1:2:3:4::5:6:7:*", "xyz::1:*",
    "::ffff:10.0.0.1", "fe80::1%eth0", "fe80::1:0-0", "fe80::*:1", "1:2:3:*:*:*:*:*", " *", "10.0.0. 1",
]  # fmt: skip


@pytest.mark.parametrize("pattern", MISREAD)
def test_what_rocketmq_refuses_or_misreads_is_an_error(pattern: str) -> None:
    with pytest.raises(ConfigError, match="address pattern"):
        parse_pattern(pattern)


def test_union_names_what_any_of_its_parts_names() -> None:
    found = union(map(parse_pattern, ("10.0.0.1", "", "11.0.0.*")))
    assert [host for host in ("10.0.0.1", "11.0.0.7", "12.0.0.1") if found.has(host)] == ["10.0.0.1", "11.0.0.7"]
    assert not union([])


@given(st.ip_addresses(), st.ip_addresses())
def test_an_address_names_itself_alone(one: IPv4Address | IPv6Address, other: IPv4Address | IPv6Address) -> None:
    try:
        found = parse_pattern(str(one))
    except ConfigError:  # an IPv4 address in IPv6 form
        return
    assert found.has(str(one))
    assert found.has(str(other)) == (one in (other, getattr(other, "ipv4_mapped", None)))
