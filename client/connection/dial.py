"""Opening a socket to a broker or name server, with TLS if wanted."""

import os
import socket
import ssl

import trio

from triomq.client.config import split_address
from triomq.client.connection.tls import ClientTlsSocket
from triomq.common.tls import TlsSession
from triomq.protocol.errors import ConfigError, ConnectError


async def dial(
    address: str, timeout_s: float, hint: str = "", tls: ssl.SSLContext | None = None
) -> socket.socket | ClientTlsSocket:
    """Connect to ``host:port``, trying all addresses of the host; return a non-blocking socket.

    Raises:
        ConnectError: refused, unreachable, unknown host, too slow, or without TLS; ``hint`` ends the text.
    """
    reason = f"no connection{'' if tls is None else ' with TLS'} within {timeout_s:g} s"
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
            return sock if tls is None else await _start_tls(sock, address, tls)
    raise ConnectError(f"cannot connect to {address}: {reason}{'; ' if hint else ''}{hint}")


async def _start_tls(sock: socket.socket, address: str, tls: ssl.SSLContext) -> ClientTlsSocket:
    made = ClientTlsSocket(sock, TlsSession(tls, host=split_address(address)[0]))
    try:
        await made.shake_hands()
    except OSError as exc:  # the peer was reached: no other hint is needed
        made.close()
        raise ConnectError(f"cannot connect to {address}: {exc.strerror or exc}") from exc
    except BaseException:
        made.close()
        raise
    return made


def _connect_reason(exc: OSError) -> str:
    causes = exc.__cause__.exceptions if isinstance(exc.__cause__, BaseExceptionGroup) else (exc,)
    return ", ".join(dict.fromkeys(map(_text_of, causes)))


def _text_of(cause: BaseException) -> str:
    if isinstance(cause, OSError) and cause.errno is not None and not isinstance(cause, socket.gaierror):
        return os.strerror(cause.errno)  # trio's own text repeats the address
    return getattr(cause, "strerror", None) or str(cause)
