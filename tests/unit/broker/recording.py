"""What unit tests of the broker have instead of sockets and time."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import trio

from tests.commands import make_command
from triomq.broker.limits.quotas import Usage
from triomq.broker.network.connection import Connection, Port
from triomq.broker.server import Broker
from triomq.broker.work import STEP_S
from triomq.protocol.codes import CommandFlag, LanguageCode, RequestCode
from triomq.protocol.host import encode_host
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import FrameSplitter
from triomq.protocol.wire.headers import Header
from triomq.storage.files.file_system import DiskSpace
from triomq.storage.message_store import MessageStore

ADVERTISED: Final = "192.0.2.1:10911"
#: The fields of a plain send.
PLAIN: Final = {
    "a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0",
    "i": "UNIQ_KEY\x01C0A8\x02WAIT\x01true", "j": "0", "k": "false", "m": "false", "n": "broker-a",
}  # fmt: skip
MakeBroker: TypeAlias = Callable[..., Broker]
"""Fixture ``make_broker``: opens brokers on one store, one after the other."""


class Clock:
    """Milliseconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now_ms = 1_795_000_000_000

    def __call__(self) -> int:
        return self.now_ms


class AtOnce:
    """Stands in for the nursery of a broker that serves in no loop: runs each task to its end."""

    def start_soon(self, function: Callable[..., Any], *args: Any) -> None:
        trio.run(function, *args)


class Peer:
    """A connection without a socket: the attributes that processors read, and the decoded answers."""

    def __init__(self, broker: Broker, peer: str = "192.0.2.9:50001", port: Port = Port.BROKER) -> None:
        host, _, port_number = peer.rpartition(":")
        self.broker = broker
        self.peer = peer
        self.port = port
        self.peer_ip = host
        self.peer_host = encode_host(host, int(port_number))
        self.advertised = ADVERTISED
        self.store_host = encode_host("192.0.2.1", 10911)
        self.message_id_host = self.store_host.hex().upper().encode()
        self.language: int = LanguageCode.OTHER
        self.version = 0
        self.is_local = host.startswith("127.")
        self.logins: frozenset[str] = frozenset()
        self.usage: Usage | None = None
        self.closed = False
        self.unread_bytes = 0
        self.late_since = 0.0
        self.sent: list[RemotingCommand] = []
        self._splitter = FrameSplitter()
        self._opaque = 100

    def send(self, command: RemotingCommand) -> None:
        self.send_frame(command.encode())

    def send_frame(self, frame: bytes) -> None:
        self.send_chunks(frame, (), 0)

    def send_chunks(self, head: bytes, chunks: Sequence[bytes | memoryview], size_bytes: int) -> None:
        frames, error = self._splitter.split(b"".join((head, *chunks)))
        assert error is None
        self.sent += map(RemotingCommand.decode, frames)

    def flush(self) -> None:
        """Nothing is queued here."""

    def count_kept(self, size_bytes: int) -> None:
        """No budget counts it."""

    @property
    def as_connection(self) -> Connection:
        return cast(Connection, self)

    def ask(
        self,
        code: int,
        fields: Header | Mapping[str, Any] | None = None,
        body: bytes = b"",
        **command_fields: Any,
    ) -> RemotingCommand | None:
        """Let the broker serve a request as a connection does; ``None``: no answer yet."""
        self._opaque += 1
        ext_fields = fields.encode() if isinstance(fields, Header) else {k: str(v) for k, v in (fields or {}).items()}
        command = make_command(code, self._opaque, 0, ext_fields, body, **command_fields)
        already = len(self.sent)
        response = self._process(command)
        if response is None:
            response = next((each for each in self.sent[already:] if each.opaque == command.opaque), None)
        if response is not None:
            assert response.opaque == command.opaque
            assert response.flag == CommandFlag.RESPONSE
        return response

    def serve(self, command: RemotingCommand) -> None:
        """Serve a request and note the answer, as a connection sends it."""
        response = self._process(command)
        if response is not None and not command.is_oneway:
            self.send(response)

    def read(self, *commands: RemotingCommand) -> None:
        """Let the broker serve requests that one read brings."""
        frames = iter([command.encode()[4:] for command in commands])
        for left in self.broker.pipeline.commands(self.as_connection, frames):
            self.serve(left)

    def refuse(self, command: RemotingCommand, error: Exception) -> None:
        """Answer a request with the error that it raised."""
        if not command.is_oneway:
            self.send(self.broker.context.refusals.response_to(self.peer, command, error))

    def answer(self, command: RemotingCommand) -> tuple[int, str]:
        """Serve a request; return code and remark of its answer."""
        response = self._process(command)
        return (0, "") if response is None else (response.code, response.remark or "")

    def _process(self, command: RemotingCommand) -> RemotingCommand | None:
        try:
            return self.broker.pipeline.serve(self.as_connection, command)
        except Exception as exc:  # noqa: BLE001  # as a connection does
            return self.broker.context.refusals.response_to(self.peer, command, exc)

    def get(
        self, code: int, fields: Header | Mapping[str, Any] | None = None, body: bytes = b"", **rest: Any
    ) -> RemotingCommand:
        """As ``ask``, where an answer must come at once."""
        response = self.ask(code, fields, body, **rest)
        assert response is not None
        return response

    def put(self, topic: str, body: bytes = b"hello", *, queue_id: int = 0, **fields: Any) -> RemotingCommand:
        """Send one message as a Java producer does."""
        header = {"a": "P", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1_795_000_000_000, "h": 0}
        return self.get(RequestCode.SEND_MESSAGE_V2, {**header, **fields}, body)

    def pull(self, topic: str, queue_offset: int, *, queue_id: int = 0, **fields: Any) -> RemotingCommand | None:
        """Pull with the expression in the request; with ``sysFlag`` 2 the broker may hold the request."""
        header = {
            "consumerGroup": "G", "topic": topic, "queueId": queue_id, "queueOffset": queue_offset, "maxMsgNums": 32,
            "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 15_000, "subVersion": 0, "subscription": "*",
        }  # fmt: skip
        return self.ask(RequestCode.PULL_MESSAGE, {**header, **fields})


def make_steps_short(broker: Broker) -> None:
    """Let each step end where it may pause."""
    broker.worker.clock = itertools.count(0, STEP_S * 1.5).__next__


def set_disk_full(store: MessageStore, *, is_full: bool) -> None:
    """Make a store refuse messages, or take them again."""
    store.refused.measured(DiskSpace(100, 0) if is_full else DiskSpace(0, 100))
