"""Relays between clients and brokers that count requests and can call a test before they forward one."""

import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from triomq.protocol.bodies.route import ClusterInfo, TopicList, TopicRouteData
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.wire.command import RemotingCommand

_LENGTH_BYTES: Final = 4
_TIMEOUT_S: Final = 60
PULLS: Final = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
SENDS: Final = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


class Tap:
    """A relay to one broker, which must be started with ``--advertise`` of the relay's address.

    Attributes:
        address: ``HOST:PORT`` of the relay.
        target: that of the broker.
        requests: their number, by code.
        answered_bytes: size of the broker's answers.
        connections: their number.
        before: called with each request and the client's port, before it is forwarded.
        refusal: called for each request; its answer, if any, goes to the client, and the broker gets nothing.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.target = ""
        self.requests: Counter[int] = Counter()
        self.answered_bytes = 0
        self.connections = 0
        self.before: Callable[[RemotingCommand, int], None] = lambda *_: None
        self.refusal: Callable[[RemotingCommand], RemotingCommand | None] = lambda _: None

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
        return sum(self.requests[code] for code in PULLS)

    def _serve(self) -> None:
        while True:
            try:
                client, (_, port) = self._listener.accept()
            except OSError:
                return  # closed
            try:
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
                    request = RemotingCommand.decode(frame[_LENGTH_BYTES:])
                    self._note(request, port)
                    if (refusal := self.refusal(request)) is not None:
                        source.sendall(refusal.encode())
                        continue
                sink.sendall(frame)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def _note(self, request: RemotingCommand, port: int) -> None:
        self.requests[request.code] += 1
        self.before(request, port)


class OneNameServer:
    """A name server that merges the routes, topics and clusters of several others.

    An unreachable one adds nothing.
    """

    def __init__(self, others: Sequence[str], relays: Mapping[str, str] | None = None) -> None:
        """Take addresses of name servers, and replacements for the addresses of brokers."""
        self._others = others
        self._relays = relays or {}
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
        merges: dict[int, Callable[[Sequence[bytes]], bytes]] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topics,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster,
        }
        with client, suppress(OSError):
            while frame := _frame(client):
                request = RemotingCommand.decode(frame[_LENGTH_BYTES:])
                code, body = ResponseCode.REQUEST_CODE_NOT_SUPPORTED, b""
                if merge := merges.get(request.code):
                    known = self._known(frame)
                    code = ResponseCode.SUCCESS if known else ResponseCode.TOPIC_NOT_EXIST
                    body = merge(known)
                client.sendall(request.reply(code, body=body).encode())

    def _known(self, frame: bytes) -> list[bytes]:
        """Return the answers of the servers that know the topic."""
        found = []
        for address in self._others:
            host, _, port = address.rpartition(":")
            with suppress(OSError), socket.create_connection((host, int(port)), _TIMEOUT_S) as other:
                other.sendall(frame)
                response = RemotingCommand.decode(_frame(other)[_LENGTH_BYTES:])
                if response.code == ResponseCode.SUCCESS:
                    found.append(bytes(response.body))
        return found

    def _route(self, known: Sequence[bytes]) -> bytes:
        merged = TopicRouteData()
        for route in map(TopicRouteData.decode, known):
            merged.queue_datas += route.queue_datas
            merged.broker_datas += route.broker_datas
        for broker in merged.broker_datas:
            broker.broker_addrs = {
                number: self._relays.get(address, address) for number, address in broker.broker_addrs.items()
            }
        return merged.encode()

    def _topics(self, known: Sequence[bytes]) -> bytes:
        return TopicList(sorted({topic for body in known for topic in TopicList.decode(body).topic_list})).encode()

    def _cluster(self, known: Sequence[bytes]) -> bytes:
        merged = ClusterInfo()
        for cluster in map(ClusterInfo.decode, known):
            merged.broker_addr_table |= cluster.broker_addr_table
            for name, brokers in cluster.cluster_addr_table.items():
                merged.cluster_addr_table.setdefault(name, []).extend(brokers)
        return merged.encode()


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
