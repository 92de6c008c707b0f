"""Certificates made during a test run: a CA, certificates it signed, and one of another CA."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


@dataclass(frozen=True)
class Identity:
    """Files of a certificate and of its private key (PKCS#8, which Apache's brokers need)."""

    cert: Path
    key: Path


class Authority:
    """A CA below a folder; ``ca`` is the file of its certificate."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(self.ca)

    def issue(self, name: str, *hosts: str) -> Identity:
        """Sign a certificate for these hosts; again under the same name it replaces the files."""
        made = self._authority.issue_cert(*(hosts or ("127.0.0.1", "localhost")), key_type=trustme.KeyType.ECDSA)
        found = Identity(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        found.cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        key = load_pem_private_key(made.private_key_pem.bytes(), None)
        found.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return found


def server_context(identity: Identity) -> ssl.SSLContext:
    """Settings of a plain server of Python's, the other side of a client under test."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.cert, identity.key)
    return context


def java_settings(folder: Path, settings: Mapping[str, object]) -> str:
    """Return the option of a JVM that makes RocketMQ read these settings of TLS."""
    file = folder / "tls.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return f"-Dtls.config.file={file}"
