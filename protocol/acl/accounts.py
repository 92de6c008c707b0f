"""Accounts, their rights, and whether a request may pass: in RocketMQ's order and with its texts.

RocketMQ checks only some requests, so an account without any right reads and changes almost everything.  Here each
request of a client needs rights on all topics and groups that it names, and every other request an administrator.

Source: behaviour.md A.19, wire.md 12; PlainAccessResource.java, Permission.java, PlainPermissionManager.java,
PlainAccessValidator.java, AclUtils.java.
"""

import hmac
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from hashlib import sha1
from operator import itemgetter
from typing import Any, Final, NamedTuple

from triomq.protocol.acl.addresses import NOBODY, AddressSet
from triomq.protocol.codes import SerializeType
from triomq.protocol.errors import RefusedError
from triomq.protocol.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, TRACE_TOPIC, holds_other_topics, retry_topic
from triomq.protocol.requests.catalogue import PUBLIC, SEND, Request, Right
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.header_formats import FieldsWithNulls
from triomq.protocol.wire.headers import Resource
from triomq.protocol.wire.signing import ACCESS_KEY, NOT_SIGNED, SIGNATURE, in_signing_order

DENY: Final = 0
PUB: Final = 1
SUB: Final = 2
#: The words of the file; RocketMQ takes any other word for DENY.
RIGHTS: Final = {"DENY": DENY, "PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB}
#: The words by right.
WORDS: Final = {right: word for word, right in reversed(RIGHTS.items())}
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
        """Whether the account has one of the rights ``right`` on a topic, or on a group by its retry topic.

        Unlike in RocketMQ, no default gives SUB on a topic that holds messages of other topics, such as undecided and
        delayed ones: it would pass over the entries of their topics.  On dead letters a default also takes SUB on
        their group.
        """
        if self.is_admin and not self.rights:
            return True
        owned = self.rights.get(resource)
        if owned is None:
            owned = self.group_right if resource.startswith(RETRY_PREFIX) else self._default(resource)
        return bool(owned & right)

    def _default(self, topic: str) -> int:
        owned = self.topic_right
        if owned and topic.startswith(DEAD_LETTER_PREFIX) and not self.may(_retries_of(topic), SUB):
            return DENY
        return owned & ~SUB if owned & SUB and holds_other_topics(topic) else owned

    def reason(self, resource: str) -> str:
        """Return which entry of the file decides about a topic, or about a group by its retry topic."""
        if self.is_admin and not self.rights:
            return "admin without topicPerms and groupPerms"
        is_group = resource.startswith(RETRY_PREFIX)
        kind, owned = ("Group", self.group_right) if is_group else ("Topic", self.topic_right)
        if resource in self.rights:
            return f"{kind.lower()}Perms: {resource.removeprefix(RETRY_PREFIX)}={WORDS[self.rights[resource]]}"
        reason = f"default{kind}Perm: {WORDS[owned]}"
        if not is_group and self._default(resource) != owned:
            if resource.startswith(DEAD_LETTER_PREFIX):
                return self.reason(_retries_of(resource))
            reason += ", but only topicPerms give SUB on a topic that holds messages of other topics"
        return reason


def _retries_of(dead_letters: str) -> str:
    return retry_topic(dead_letters.removeprefix(DEAD_LETTER_PREFIX))


@dataclass(frozen=True, slots=True)
class AclRules:
    """All accounts of a broker, and the addresses that may do everything."""

    white: AddressSet = NOBODY
    accounts: Mapping[str, Account] = field(default_factory=dict)


# --- whether a request may pass -----------------------------------------------------------------------------

_NULL: Final = "null"
_KNOWN_LENGTH: Final = 512  # of all names together; longer ones are not kept
_BINARY: Final = int(SerializeType.ROCKETMQ)
_NOTHING, _PUB, _ADMIN = Right.NOTHING, Right.PUB, Right.ADMIN  # the look-up of a member takes 0.4 us
_GROUP: Final = Resource.GROUP


class Needs(NamedTuple):
    """Rights that an account must have.

    Attributes:
        rights: by topic, and by retry topic for a group.
        admin: whether only an administrator may do it.
    """

    rights: dict[str, int]
    admin: bool = False


def needs(request: Request, command: RemotingCommand) -> Needs:
    """Return the rights that a request needs, by its row.

    Raises:
        RefusedError: a topic or group that it must name is missing.
        ProtocolError: its body cannot be read.
    """
    if request.right is _ADMIN:
        return Needs({}, admin=True)
    rights: dict[str, int] = {}
    if request.right is _NOTHING:
        return Needs(rights)
    for wire, resource, is_required in request.resources:
        name = command.ext_fields.get(wire)
        if name:
            rights.update(_right(request, resource, name))
        elif is_required:
            raise _unnamed(command, f"its field {wire} is missing")
    if request.names_in is not None:
        for resource, name in request.names_in(command.body):
            if not name:
                raise _unnamed(command, f"its body names no {resource.value}")
            rights.update(_right(request, resource, name))
    return Needs(rights)


def _right(request: Request, resource: Resource, name: str) -> dict[str, int]:
    if resource is _GROUP:
        return {retry_topic(name): SUB}
    return {name: PUB if request.right is _PUB and not name.startswith(RETRY_PREFIX) else SUB}


def _unnamed(command: RemotingCommand, reason: str) -> RefusedError:
    return RefusedError(f"request {command.code} does not say on what it acts: {reason}")


def check(rules: AclRules, request: Request, command: RemotingCommand, host: str) -> Account | None:
    """Let a request of ``host``, the address of its peer, pass; return its account as :func:`authenticate` does.

    Raises:
        RefusedError: it may not.
        ProtocolError: it cannot be read.
    """
    if request.kind is PUBLIC:
        return None
    account = authenticate(rules, command, host)
    if account is None:
        return None
    needed = needs(request, command)
    if request.kind is SEND:
        needed.rights.pop(TRACE_TOPIC, None)  # every account may write traces
    check_rights(account, needed, command.code)
    return account


def authenticate(rules: AclRules, command: RemotingCommand, host: str) -> Account | None:
    """Return the account that signed a request; ``None`` if it may do everything because of its address.

    Raises:
        RefusedError: the account is unknown, or the signature is wrong.
    """
    if rules.white and rules.white.has(host):
        return None
    fields = command.ext_fields
    key = fields.get(ACCESS_KEY)
    if key is None or (not key and command.serialize_type == _BINARY):
        raise RefusedError("No accessKey is configured")
    account = rules.accounts.get(key)
    if account is None:
        raise RefusedError(f"No acl config for {key:.255}")
    if account.white and account.white.has(host):
        return None
    if not is_signed(account, fields_to_sign(command), command.body):
        raise RefusedError(f"Check signature failed for accessKey={key}")
    return account


def check_rights(account: Account, needed: Needs, code: int) -> None:
    """Check the rights of an account.

    Raises:
        RefusedError: one is missing; the text names it.
    """
    if needed.admin and not account.is_admin:
        raise RefusedError(f"Need admin permission for request code={code}, but accessKey={account.access_key} is not")
    for resource, right in needed.rights.items():
        if not account.may(resource, right):
            raise RefusedError(missing_right(resource))


def missing_right(resource: str) -> str:
    """Return RocketMQ's text about a missing right on a topic, or on a group by its retry topic."""
    group = resource.removeprefix(RETRY_PREFIX)
    return f"No default permission for {f'topic:{resource}' if group == resource else f'group:{group}'}"


def fields_to_sign(command: RemotingCommand) -> Mapping[str, str]:
    """Return the fields with those that RocketMQ reads as null, which it signs as text: null, and empty binary ones."""
    fields = command.ext_fields
    if command.serialize_type == _BINARY:
        return {name: value or _NULL for name, value in fields.items()}
    if isinstance(fields, FieldsWithNulls):
        return {**fields, **dict.fromkeys(fields.nulls, _NULL)}
    return fields


def passes_as_send(rules: AclRules, fields: Mapping[str, Any], body: bytes) -> bool:
    """Whether a send (SEND_MESSAGE_V2) in JSON passes, by a short way; ``False``: :func:`check` must decide.

    Most requests are sends, signed, by accounts with an entry or a default for the topic.
    """
    try:
        account, topic = rules.accounts[fields[ACCESS_KEY]], fields["b"]
        return (
            bool(topic)
            and topic[:1] != "%"  # retry topics and dead letters: their groups decide
            and account.may(topic, PUB)
            and is_signed(account, fields, body)
        )
    except (KeyError, TypeError, AttributeError):  # no account, or something is not text
        return False


def is_signed(account: Account, fields: Mapping[str, str], body: bytes | memoryview) -> bool:
    """Whether the signature of a request is the account's, compared in constant time.

    ``_UNIQUE_KEY_QUERY`` may be signed or not: 5.x brokers accept both, 4.9 brokers only the second.

    Args:
        account: whose signature it should be.
        fields: of the request, signature included.
        body: of the request.

    Raises:
        TypeError: a field is not text.
    """
    given = fields.get(SIGNATURE)
    if given is None:
        return False
    together = "".join(fields)
    if len(together) <= _KNOWN_LENGTH and NOT_SIGNED not in fields and together.isascii():
        return _matches(account, _in_order(tuple(fields))(fields), body, given)
    names = in_signing_order(fields)
    names.remove(SIGNATURE)
    if NOT_SIGNED in fields:
        if _matches(account, [fields[name] for name in names], body, given):
            return True
        names.remove(NOT_SIGNED)
    return _matches(account, [fields[name] for name in names], body, given)


@lru_cache(maxsize=256)  # clients send few kinds of requests, each with its names in one order
def _in_order(names: tuple[str, ...]) -> Callable[[Mapping[str, str]], Iterable[str]]:
    """Return the function that takes the values to be signed, in their order."""
    signed = sorted(name for name in names if name != SIGNATURE)
    return itemgetter(*signed) if signed else lambda _fields: ()


def _matches(account: Account, values: Iterable[str], body: bytes | memoryview, given: str) -> bool:
    content = b"".join(("".join(values).encode("utf-8", "replace"), body))
    return hmac.compare_digest(account.signer.sign(content), given.encode("utf-8", "replace"))
