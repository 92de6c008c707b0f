"""Opening a socket to a broker or name server."""

import os
import socket

import trio

from triomq.client.config import split_address
from triomq.protocol.errors import ConfigError, ConnectError


async def dial(address: str, timeout_s: float, hint: str = "") -> socket.socket:
    """Connect to ``host:port``, trying all addresses of the host; return a non-blocking socket.

    Raises:
        ConnectError: refused, unreachable, unknown host or too slow; ``hint`` ends the text.
    """
    reason = f"no connection within {timeout_s:g} s"
    with trio.move_on_after(timeout_s):
        try:
            stream = await trio.open_tcp_stream(*split_address(address))
        except OSError as exc:
            reason = _connect_reason(exc)
        except (ConfigError, UnicodeError) as exc:  # UnicodeError: not a possible host name
            reason = str(exc)
        else:
            sock = socket.socket(fileno=stream.socket.detach())
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
    raise ConnectError(f"cannot connect to {address}: {reason}{'; ' if hint else ''}{hint}")


def _connect_reason(exc: OSError) -> str:
    causes = exc.__cause__.exceptions if isinstance(exc.__cause__, BaseExceptionGroup) else (exc,)
    return ", ".join(dict.fromkeys(map(_text_of, causes)))


def _text_of(cause: BaseException) -> str:
    if isinstance(cause, OSError) and cause.errno is not None and not isinstance(cause, socket.gaierror):
        return os.strerror(cause.errno)  # trio's own text repeats the address
    return getattr(cause, "strerror", None) or str(cause)
