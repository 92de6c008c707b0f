"""Accounts, and the rights that they have.

Source: behaviour.md A.19; PlainAccessResource.java, Permission.java.
"""

from binascii import b2a_base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha1
from typing import Final

from triomq.protocol.acl.addresses import NOBODY, AddressSet
from triomq.protocol.names import RETRY_PREFIX

DENY: Final = 0
PUB: Final = 1
SUB: Final = 2
#: The words of the file; RocketMQ takes any other word for DENY.
RIGHTS: Final = {"DENY": DENY, "PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB}
_WORDS: Final = {right: word for word, right in reversed(RIGHTS.items())}
_BLOCK_BYTES: Final = 64  # of SHA-1
_hash: Final = partial(sha1, usedforsecurity=False)  # HMAC is safe with it, and RocketMQ has no other
#: Keys and secrets must be longer.
MIN_KEY_LENGTH: Final = 6


class Signer:
    """Signs as an account does: Base64 of HMAC-SHA1.

    Copies of the two started hashes take a quarter of the time of ``hmac.digest``, which looks up its algorithm.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: str) -> None:
        key = secret.encode("utf-8", "replace")
        key = (_hash(key).digest() if len(key) > _BLOCK_BYTES else key).ljust(_BLOCK_BYTES, b"\0")
        self._inner = _hash(bytes(byte ^ 0x36 for byte in key))
        self._outer = _hash(bytes(byte ^ 0x5C for byte in key))

    def sign(self, content: bytes) -> bytes:
        """Return the signature."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(content)
        outer.update(inner.digest())
        return b2a_base64(outer.digest(), newline=False)


@dataclass(frozen=True, slots=True)
class Account:
    """An account; its ``repr`` does not show the secret.

    Attributes:
        white: from these addresses the key's name is enough, without a signature, for everything.
        topic_right, group_right: of topics and groups that ``rights`` does not name.
        rights: by topic, and by retry topic for a group.
    """

    access_key: str
    secret_key: str = field(repr=False)
    white: AddressSet = NOBODY
    is_admin: bool = False
    topic_right: int = DENY
    group_right: int = DENY
    rights: Mapping[str, int] = field(default_factory=dict)
    signer: Signer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "signer", Signer(self.secret_key))

    def may(self, resource: str, right: int) -> bool:
        """Whether the account has one of the rights ``right`` on a topic, or on a group by its retry topic."""
        if self.is_admin and not self.rights:
            return True
        owned = self.rights.get(resource)
        if owned is None:
            owned = self.group_right if resource.startswith(RETRY_PREFIX) else self.topic_right
        return bool(owned & right)

    def reason(self, resource: str) -> str:
        """Return which entry of the file decides about a topic, or about a group by its retry topic."""
        if self.is_admin and not self.rights:
            return "admin without topicPerms and groupPerms"
        is_group = resource.startswith(RETRY_PREFIX)
        kind, owned = ("Group", self.group_right) if is_group else ("Topic", self.topic_right)
        if resource in self.rights:
            return f"{kind.lower()}Perms: {resource.removeprefix(RETRY_PREFIX)}={_WORDS[self.rights[resource]]}"
        return f"default{kind}Perm: {_WORDS[owned]}"


@dataclass(frozen=True, slots=True)
class AclRules:
    """All accounts of a broker, and the addresses that may do everything."""

    white: AddressSet = NOBODY
    accounts: Mapping[str, Account] = field(default_factory=dict)


def describe(resource: str) -> str:
    """Return ``topic:T``, or ``group:G`` for the retry topic of a group."""
    if resource.startswith(RETRY_PREFIX):
        return f"group:{resource.removeprefix(RETRY_PREFIX)}"
    return f"topic:{resource}"
