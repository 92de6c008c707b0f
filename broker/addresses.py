"""Addresses on the command line, of sockets and in routes."""

import ipaddress
import socket
from collections.abc import Iterable
from typing import NamedTuple, Self, TypeAlias

from triomq.protocol.errors import ConfigError

_MAX_PORT = 65535

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
"""Addresses with the same first bits; a single address has all of them."""


class Address(NamedTuple):
    """A host, by name or number, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, default_port: int | None = None) -> Self:
        """Parse ``HOST:PORT``, with ``default_port`` also ``HOST``; an IPv6 host is in brackets.

        Raises:
            ConfigError: the text has no host, or no port within 0..65535.
        """
        if default_port is not None and (":" not in text or text.endswith("]")):
            text = f"{text}:{default_port}"
        host, separator, port = text.rpartition(":")
        if not separator or not port.isdecimal() or int(port) > _MAX_PORT:
            raise ConfigError(f"{text!r} is not HOST:PORT with a port from 0 to {_MAX_PORT}")
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not bare or (":" in bare and bare == host):
            raise ConfigError(f"{text!r} is not HOST:PORT; an IPv6 address needs brackets, as in [::1]:{port}")
        return cls(bare, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_wildcard(self) -> bool:
        """Whether a listener on it accepts connections to every address of this machine."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False


def plain_ip(host: str) -> str:
    """Return the address that a socket reports; an IPv4 address in IPv6 form becomes plain IPv4."""
    host = host.partition("%")[0]  # the scope of a link-local address
    return host[7:] if host.startswith("::ffff:") and "." in host else host


def limited_host(host: str) -> str:
    """Return the text by which limits of each address count a peer: an IPv6 address counts with its /64 network.

    A host chooses the last 64 bits of its IPv6 address itself, so that it has as many addresses as it wants.
    """
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host)
    if address.is_loopback:
        return host
    return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))


def parse_networks(text: str) -> tuple[Network, ...]:
    """Read ``ADDRESS[,ADDRESS/PREFIX...]``.

    Raises:
        ConfigError: it has another form.
    """
    try:
        return tuple(ipaddress.ip_network(each.strip()) for each in text.split(","))
    except ValueError as exc:
        raise ConfigError(f"{text!r} is not ADDRESS[,ADDRESS/PREFIX...]: {exc}") from None


def is_in(ip: str, networks: Iterable[Network]) -> bool:
    """Whether an address, as :func:`plain_ip` returns it, is in one of the networks."""
    try:
        address = ipaddress.ip_address(ip)
    except ValueError:
        return False
    return any(address in network for network in networks)


def resolve_ip(host: str) -> str | None:
    """Return an IP address of ``host``, IPv4 if it has one, or ``None``.  May block on DNS."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the latter for an impossible name, such as one with two consecutive dots
        return None
    addresses = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)
    return plain_ip(str(addresses[0][4][0])) if addresses else None
