"""Whether a request may pass: address, account, signature and rights, in RocketMQ's order and with its texts.

Source: behaviour.md A.19, wire.md 12; PlainPermissionManager.java, PlainAccessValidator.java, AclUtils.java.
"""

import hmac
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final

from triomq.protocol.acl.accounts import PUB, Account, AclRules, describe
from triomq.protocol.acl.needs import Needs, needs, needs_like_apache
from triomq.protocol.codes import SerializeType
from triomq.protocol.errors import RefusedError
from triomq.protocol.names import TRACE_TOPIC
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.formats.json_header import FieldsWithNulls
from triomq.protocol.wire.signing import ACCESS_KEY, NOT_SIGNED, SIGNATURE, in_signing_order

_NULL: Final = "null"
_KNOWN_LENGTH: Final = 512  # of all names together; longer ones are not kept
_BINARY: Final = int(SerializeType.ROCKETMQ)


def check(rules: AclRules, command: RemotingCommand, host: str) -> Account | None:
    """Let a request of ``host``, the address of its peer, pass; return its account as :func:`authenticate` does.

    Raises:
        RefusedError: it may not.
        ProtocolError: it cannot be read.
    """
    needed = needs_like_apache(command) if rules.like_apache else None  # there a white address does not help a bad body
    account = authenticate(rules, command, host)
    if account is None:
        return None
    needed = needed or needs(command)
    if needed.rights.get(TRACE_TOPIC) != PUB:  # all may write where their messages went
        check_rights(account, needed, command.code)
    return account


def authenticate(rules: AclRules, command: RemotingCommand, host: str) -> Account | None:
    """Return the account that signed a request; ``None`` if it may do everything because of its address.

    Raises:
        RefusedError: there is no such account, or the signature is wrong.
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
    if not is_signed(account, fields_to_sign(command), command.body, strictly=rules.like_apache):
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
            raise RefusedError(f"No default permission for {describe(resource)}")


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
            and topic[:1] != "%"  # retry topics
            and account.may(topic, PUB)
            and is_signed(account, fields, body, strictly=rules.like_apache)
        )
    except (KeyError, TypeError, AttributeError):  # no account, or something is not text
        return False


def is_signed(account: Account, fields: Mapping[str, str], body: bytes | memoryview, *, strictly: bool = False) -> bool:
    """Whether the signature of a request is the account's, compared in constant time.

    Args:
        account: whose signature it should be.
        fields: of the request, signature included.
        body: of the request.
        strictly: do not accept ``_UNIQUE_KEY_QUERY`` signed, as 4.9 brokers do not and 5.x brokers do.

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
        if not strictly and _matches(account, [fields[name] for name in names], body, given):
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
