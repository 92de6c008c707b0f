"""Relays between clients and brokers that count the requests, and let a test do something before one is handed on."""

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from triomq.protocol.bodies import TopicRouteData
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.command import RemotingCommand

_LENGTH_BYTES: Final = 4
_TIMEOUT_S: Final = 60
PULLS: Final = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
SENDS: Final = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


class Tap:
    """A relay to one broker, which must be started with ``--advertise`` of the relay's address.

    Attributes:
        address: ``HOST:PORT`` of the relay.
        target: that of the broker.
        requests: how many there were, by code.
        pull_times: when pulls came.
        answered_bytes: what the broker sent.
        connections: how many there were.
        is_cut: whether nothing is handed on, as if the broker was away; each connection ends with its next request.
        before: called with each request and the client's port, before it is handed on.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.target = ""
        self.requests: Counter[int] = Counter()
        self.pull_times: list[float] = []
        self.answered_bytes = 0
        self.connections = 0
        self.is_cut = False
        self.before: Callable[[RemotingCommand, int], None] = lambda *_: None

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections and take no more; a second call does nothing."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def pulls(self) -> int:
        return len(self.pull_times)

    def _serve(self) -> None:
        while True:
            try:
                client, (_, port) = self._listener.accept()
            except OSError:
                return  # closed
            try:
                if self.is_cut:
                    raise ConnectionRefusedError
                host, _, target = self.target.rpartition(":")
                broker = socket.create_connection((host, int(target)), _TIMEOUT_S)
            except OSError:
                client.close()
                continue
            broker.settimeout(None)
            self.connections += 1
            self._sockets += [client, broker]
            threading.Thread(target=self._relay, args=(client, broker, port), daemon=True).start()
            threading.Thread(target=self._relay, args=(broker, client, None), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket, port: int | None) -> None:
        with suppress(OSError):
            while frame := _frame(source):
                if port is None:
                    self.answered_bytes += len(frame)
                else:
                    self._note(RemotingCommand.decode(frame[_LENGTH_BYTES:]), port)
                    if self.is_cut:
                        break
                sink.sendall(frame)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def _note(self, request: RemotingCommand, port: int) -> None:
        self.requests[request.code] += 1
        if request.code in PULLS:
            self.pull_times.append(time.monotonic())
        self.before(request, port)


class OneNameServer:
    """A name server that knows what several others know: routes of topics, and nothing else."""

    def __init__(self, others: Sequence[str]) -> None:
        self._others = others
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            while frame := _frame(client):
                request = RemotingCommand.decode(frame[_LENGTH_BYTES:])
                code, body = int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED), b""
                if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
                    code, body = self._route(frame)
                client.sendall(request.reply(code, body=body).encode())

    def _route(self, frame: bytes) -> tuple[int, bytes]:
        merged = TopicRouteData()
        for address in self._others:
            host, _, port = address.rpartition(":")
            with socket.create_connection((host, int(port)), _TIMEOUT_S) as other:
                other.sendall(frame)
                response = RemotingCommand.decode(_frame(other)[_LENGTH_BYTES:])
            if response.code == ResponseCode.SUCCESS:
                route = TopicRouteData.decode(response.body)
                merged.queue_datas += route.queue_datas
                merged.broker_datas += route.broker_datas
        return ResponseCode.SUCCESS if merged.queue_datas else ResponseCode.TOPIC_NOT_EXIST, merged.encode()


def ask(address: str, code: int) -> None:
    """Send a broker a request without fields, which it must answer well."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), _TIMEOUT_S) as broker:
        broker.sendall(RemotingCommand(code).encode())
        answer = RemotingCommand.decode(_frame(broker)[_LENGTH_BYTES:])
        assert answer.code == ResponseCode.SUCCESS, answer


def _frame(source: socket.socket) -> bytes:
    """Read a frame with its length; nothing at the end of the connection."""
    length = _exactly(source, _LENGTH_BYTES)
    return length + _exactly(source, int.from_bytes(length)) if length else b""


def _exactly(source: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        data = source.recv(count - len(parts))
        if not data:
            return b""
        parts += data
    return bytes(parts)


def owner_of(port: int) -> int:
    """Return the process that has the connection whose own port on loopback is ``port``."""
    inodes = {
        f"socket:[{fields[9]}]"
        for fields in (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
        if fields[1].endswith(f":{port:04X}")
    }
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if str(link.readlink()) in inodes:
                return int(link.parts[2])
    raise ProcessLookupError(f"no process with port {port}")


def ancestors(pid: int) -> list[int]:
    """Return a process and those above it."""
    found = []
    while pid > 1:
        found.append(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found
