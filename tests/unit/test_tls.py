import ssl
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.certificates import Authority, Identity, server_context
from triomq.common.tls import TlsSession, load_ca, load_identity, make_context
from triomq.protocol.errors import ConfigError
from triomq.protocol.wire.write_queue import WriteQueue


class Contexts(NamedTuple):
    server: ssl.SSLContext
    client: ssl.SSLContext


@pytest.fixture(scope="module", params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def contexts(request: pytest.FixtureRequest, authority: Authority, identity: Identity) -> Contexts:
    made = Contexts(make_context(is_server=True), make_context(is_server=False))
    load_identity(made.server, identity.cert, identity.key)
    load_ca(made.client, authority.ca)
    made.client.maximum_version = request.param
    return made


class End:
    """One side: a session, the plain bytes it has yet to send, and those it got."""

    def __init__(self, session: TlsSession) -> None:
        self.session = session
        self.queue = WriteQueue()
        self.got = bytearray()

    def step(self, other: "End", taken: int) -> int:
        """Let the wire take so many bytes from this side; return how many it took."""
        sealed = self.session.seal(self.queue.chunks() if self.session.is_established else ())
        wire = bytes(sealed[:taken])
        self.queue.written(self.session.sent(len(wire)))
        if wire:
            other.session.receive(wire)
            if other.session.is_established or other.session.shake_hands():
                other.take(taken)
        return len(wire)

    def take(self, taken: int) -> None:
        if taken % 2:
            self.got += self.session.read()
        while self.session.has_received:  # as if frames were received in place
            room = memoryview(bytearray(taken))
            count = self.session.read_into(room)
            self.got += room[:count]


def ends(contexts: Contexts) -> tuple[End, End]:
    return (
        End(TlsSession(contexts.client, host="127.0.0.1")),
        End(TlsSession(contexts.server, is_server=True)),
    )


@given(
    sent=st.tuples(*[st.lists(st.integers(0, 100_000), max_size=5)] * 2),
    taken=st.lists(st.integers(1, 300_000), min_size=1, max_size=10),
)
def test_bytes_arrive_once_for_any_split(
    contexts: Contexts, sent: tuple[list[int], list[int]], taken: list[int]
) -> None:
    pair = ends(contexts)
    for end, sizes in zip(pair, sent, strict=True):
        for size in sizes:
            end.queue.put(bytes(number % 251 for number in range(size)))
    pair[0].session.shake_hands()
    wanted = [b"".join(map(bytes, end.queue.chunks())) for end in pair]
    quiet = turn = 0
    while quiet < 2:
        count = taken[turn % len(taken)] + turn // 20  # ever more, or long streams would take long
        quiet = 0 if pair[turn % 2].step(pair[1 - turn % 2], count) else quiet + 1
        turn += 1
    assert [pair[1].got, pair[0].got] == wanted
    assert not any(end.queue or end.session.has_own for end in pair)


def shaken(contexts: Contexts) -> tuple[TlsSession, TlsSession]:
    client, server = ends(contexts)
    client.session.shake_hands()
    for _ in range(3):
        client.step(server, 2**20)
        server.step(client, 2**20)
    assert client.session.is_established
    assert server.session.is_established
    return client.session, server.session


def test_end_of_data_differs_from_a_pause(contexts: Contexts) -> None:
    client, server = shaken(contexts)
    server.receive(client.seal([b"last"]))
    client.sent(len(client.seal()))
    assert server.read() == b"last"
    assert not server.has_ended
    client.end()
    server.receive(client.seal())
    assert server.read() == b""
    assert server.has_ended


def test_own_bytes_of_tls_wait_behind_plain_bytes(contexts: Contexts) -> None:
    client, server = shaken(contexts)
    states = [client.has_own]
    first = client.seal([b"plain"])
    assert client.sent(len(first) - 1) == 0
    client.end()
    states.append(client.has_own)
    assert client.sent(len(client.seal())) == len(b"plain")
    states.append(client.has_own)
    assert states == [False, False, True]
    server.receive(bytes(first) + bytes(client.seal()))
    assert server.read() == b"plain"


def test_peer_that_forces_unread_answers_is_closed(contexts: Contexts) -> None:
    client, server = shaken(contexts)
    server._outgoing.write(bytes(65 * 1024))  # as if it asked for new keys again and again
    with pytest.raises(ssl.SSLError, match="does not read"):
        server.receive(client.seal([b"once more"]))


@pytest.mark.parametrize("position", [7, 30])
def test_damage_is_an_error(contexts: Contexts, position: int) -> None:
    client, server = shaken(contexts)
    sealed = bytearray(client.seal([bytes(100)]))
    sealed[position] ^= 1
    server.receive(bytes(sealed))
    with pytest.raises(ssl.SSLError):
        server.read()


@pytest.mark.parametrize("ciphers", ["AES128-GCM-SHA256", "AES256-SHA", "DHE-RSA-AES128-GCM-SHA256"])
def test_ciphers_without_forward_secrecy_are_refused(contexts: Contexts, ciphers: str) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    old.set_ciphers(ciphers)
    client, server = TlsSession(old), TlsSession(contexts.server, is_server=True)
    client.shake_hands()
    server.receive(client.seal())
    with pytest.raises(ssl.SSLError):
        server.shake_hands()


def test_unusable_files_are_named_in_the_error(tmp_path: Path, authority: Authority, identity: Identity) -> None:
    empty, locked = tmp_path / "empty.pem", tmp_path / "locked.key"
    empty.write_text("nothing")
    locked.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n")
    other = authority.issue("other")
    context = make_context(is_server=True)
    for cert, key, text in (
        (tmp_path / "none.pem", identity.key, "none.pem: No such file"),
        (empty, identity.key, "empty.pem contains no certificate"),
        (identity.cert, empty, "empty.pem contains no private key"),
        (identity.cert, other.key, "key values mismatch"),
        (identity.cert, locked, "locked.key"),
    ):
        with pytest.raises(ConfigError, match=text):
            load_identity(context, cert, key)
    with pytest.raises(ConfigError, match="contains no certificate"):
        load_ca(context, empty)


def test_an_encrypted_key_is_refused_without_asking(tmp_path: Path, identity: Identity) -> None:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    key = load_pem_private_key(identity.key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    with pytest.raises(ConfigError, match="is encrypted; decrypt it"):
        load_identity(make_context(is_server=True), identity.cert, locked)


def test_a_server_of_python_agrees(authority: Authority, identity: Identity) -> None:
    client = make_context(is_server=False)
    load_ca(client, authority.ca)
    shaken(Contexts(server_context(identity), client))
