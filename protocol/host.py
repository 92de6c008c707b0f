"""Socket addresses in records: 4 or 16 address bytes and a 4-byte port.

Source: wire.md 10.1; store.md 2.1.
"""

from ipaddress import IPv6Address, ip_address
from struct import Struct
from typing import Final

from triomq.protocol.errors import ProtocolError

IPV4_HOST_LENGTH: Final = 8
IPV6_HOST_LENGTH: Final = 20
_PORT: Final = Struct(">I")
_MAX_PORT: Final = 0xFFFF


def encode_host(ip: str, port: int) -> bytes:
    """Return 8 or 20 bytes; IPv4 written as IPv6 (``::ffff:10.0.0.1``) becomes plain IPv4, as in Java.

    Raises:
        ProtocolError: ``ip`` is not a numeric address or ``port`` not in 0..65535.
    """
    if not 0 <= port <= _MAX_PORT:
        raise ProtocolError(f"port {port} of {ip!r}: not in 0..65535")
    return pack_ip(ip) + _PORT.pack(port)


def pack_ip(ip: str) -> bytes:
    """Return the 4 or 16 bytes of a numeric address.

    Raises:
        ProtocolError: not an address; host names are not resolved.
    """
    try:
        packed = bytes(map(int, ip.split(".")))
        if len(packed) == 4 and _dotted(packed) == ip:  # int() accepts more than digits, so compare
            return packed
    except ValueError:
        pass
    try:
        address = ip_address(ip)
    except ValueError as exc:
        raise ProtocolError(f"{ip[:80]!r}: not a numeric IP address") from exc
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.packed
    return address.packed


def decode_host(host: bytes) -> tuple[str, int]:
    """Return address text and port of 8 or 20 bytes.

    Raises:
        ProtocolError: another length, or a port above 65535.
    """
    length = len(host)
    if length == IPV4_HOST_LENGTH:
        ip = _dotted(host[:4])
    elif length == IPV6_HOST_LENGTH:
        ip = str(IPv6Address(bytes(host[:16])))
    else:
        raise ProtocolError(f"host of {length} bytes: must be 8 or 20")
    (port,) = _PORT.unpack_from(host, length - 4)
    if port > _MAX_PORT:
        raise ProtocolError(f"host {ip}: port {port} above 65535")
    return ip, port


def format_host(host: bytes) -> str:
    """Return ``ip:port`` (``[ip]:port`` for IPv6) of 8 or 20 bytes.

    Raises:
        ProtocolError: as for ``decode_host``.
    """
    ip, port = decode_host(host)
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def _dotted(packed: bytes) -> str:
    return ".".join(map(str, packed))
