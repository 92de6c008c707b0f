"""The account of a client, which signs requests for brokers with ``aclEnable``.

Source: wire.md 12.
"""

import hmac
from base64 import b64encode
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from triomq.protocol.errors import ConfigError, ProtocolError
from triomq.protocol.typed import check_fields

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105  # the field's name
SIGNATURE: Final = "Signature"
#: 4.9 brokers leave this field out of the signature, 5.x brokers do not.  It only raises the number of messages that
#: are searched for, so a signed request omits it.
NOT_SIGNED: Final = "_UNIQUE_KEY_QUERY"
#: In remarks of 4.9 brokers and ours, and of 5.x brokers with authentication.
_NO_ACCOUNT: Final = ("No accessKey is configured", "username cannot be null")
_NAMES: Final = ("accessKey", "secretKey", "securityToken")


def in_signing_order(names: Collection[str]) -> list[str]:
    """Return the names of fields in the order in which their values are signed: Java's, by UTF-16 units."""
    if "".join(names).isascii():
        return sorted(names)
    return sorted(names, key=lambda name: name.encode("utf-16-be", "surrogatepass"))


def names_no_account(remark: str | None) -> bool:
    """Whether the remark of an answer says that the request was refused because it names no account."""
    return any(text in (remark or "") for text in _NO_ACCOUNT)


@dataclass(frozen=True, slots=True)
class Credentials:
    """An account; its ``repr`` shows only the access key.

    Raises:
        ConfigError: the access key or secret key is empty.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.access_key or not self.secret_key:
            raise ConfigError("credentials: access key and secret key must not be empty")

    def sign(self, fields: Mapping[str, str], body: bytes | memoryview = b"") -> dict[str, str]:
        """Return the fields of a request with account and signature; neither they nor the body may change afterwards.

        A signature of an earlier attempt is replaced, and the mark of a query by unique key is dropped.

        Raises:
            ProtocolError: a field cannot be UTF-8.
        """
        signed = dict(fields)
        signed[ACCESS_KEY] = self.access_key
        if self.security_token is not None:
            signed[SECURITY_TOKEN] = self.security_token
        signed.pop(SIGNATURE, None)
        signed.pop(NOT_SIGNED, None)
        try:
            content = "".join(signed[name] for name in in_signing_order(signed)).encode()
        except UnicodeEncodeError as exc:
            raise ProtocolError(f"fields to be signed: not encodable as UTF-8: {exc}") from exc
        mac = hmac.new(self.secret_key.encode(), content, "sha1")
        mac.update(body)
        signed[SIGNATURE] = b64encode(mac.digest()).decode()
        return signed


def parse_credentials(text: str) -> Credentials:
    """Read an account: the lines ``accessKey: ...``, ``secretKey: ...`` and optionally ``securityToken: ...``.

    This is the format of ``conf/tools.yml`` of Apache's tools.  Quotes around a value are removed; empty lines,
    comments (``#``) and other names are skipped.

    Raises:
        ConfigError: a key is missing; the error shows no value.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and (name := name.strip()) in _NAMES:
            value = value.strip()
            is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
            found[name] = value[1:-1] if is_quoted else value
    missing = [name for name in _NAMES[:2] if not found.get(name)]
    if missing:
        raise ConfigError(
            f"credentials: no {' and no '.join(missing)}; write lines 'accessKey: ...' and 'secretKey: ...'"
        )
    return Credentials(found["accessKey"], found["secretKey"], found.get("securityToken") or None)
