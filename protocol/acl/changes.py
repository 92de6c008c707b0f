"""Changes of the file of accounts: from its text to the new text, which RocketMQ and :mod:`plain_acl` can read.

The whole file is written anew, so comments go, as in RocketMQ.

Source: wire.md 7 (codes 50, 51, 53, 54); PlainPermissionManager.java.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from triomq.protocol.acl.plain_acl import (
    ACCESS_KEY,
    ACCOUNTS,
    SECRET_KEY,
    WHITE_ADDRESSES,
    Value,
    read_document,
    read_rules,
)
from triomq.protocol.errors import ConfigError

AccountFields: TypeAlias = dict[str, Value]
_COMMA: Final = re.compile(r",(?![^{}]*\})")
_PERMISSIONS: Final = ("topicPerms", "groupPerms")


def set_account(text: str, changes: Mapping[str, Value]) -> str:
    """Add an account, or change the fields of one; those that are not given stay.

    Raises:
        ConfigError: the file or the account is wrong; without secrets.
    """
    white, accounts = read_document(text)
    key = changes[ACCESS_KEY]
    found = next((account for account in accounts if account[ACCESS_KEY] == key), None)
    if found is None:
        found = {}
        accounts.append(found)
    found |= changes
    return _checked(white, accounts)


def delete_account(text: str, key: str) -> str:
    """Remove an account.

    Raises:
        ConfigError: the file is wrong, or has no such account.
    """
    white, accounts = read_document(text)
    left = [account for account in accounts if account[ACCESS_KEY] != key]
    if len(left) == len(accounts):
        raise ConfigError(f"there is no account {key:.255}")
    return _checked(white, left)


def set_white_addresses(text: str, addresses: Sequence[str]) -> str:
    """Replace the addresses that may do everything.

    Raises:
        ConfigError: the file or an address is wrong.
    """
    _, accounts = read_document(text)
    return _checked(list(addresses), accounts)


def public_accounts(texts: Iterable[str]) -> dict[str, Any]:
    """Return all accounts for an administrator, without their secrets, from the texts of all files.

    Raises:
        ConfigError: a file is wrong.
    """
    white: list[str] = []
    shown: list[AccountFields] = []
    for text in texts:
        addresses, accounts = read_document(text)
        white += addresses
        shown += [{"admin": False} | {name: each[name] for name in each if name != SECRET_KEY} for each in accounts]
    return {"globalWhiteAddrs": white, "plainAccessConfigs": shown}


def changes_of(fields: Mapping[str, str]) -> AccountFields:
    """Return the changes that the fields of request 50 ask for; ``admin`` is false if it is left out.

    Raises:
        ConfigError: they name no account.
    """
    if not fields.get(ACCESS_KEY):
        raise ConfigError("accessKey is missing")
    changes: AccountFields = {"admin": fields.get("admin", "").lower() == "true"}
    for name in (ACCESS_KEY, SECRET_KEY, "whiteRemoteAddress", "defaultTopicPerm", "defaultGroupPerm"):
        if name in fields and (fields[name] or name == "whiteRemoteAddress"):
            changes[name] = fields[name]
    changes |= {name: split(fields[name]) for name in _PERMISSIONS if name in fields}
    return changes


def split(text: str) -> list[str]:
    """Return the items of a list with commas; those in braces belong to an address."""
    return [item for each in _COMMA.split(text) if (item := each.strip())]


def _checked(white: Sequence[str], accounts: Sequence[AccountFields]) -> str:
    text = "\n".join([*_lines(white, accounts), ""])
    try:
        read_rules(text)
    except ConfigError as exc:  # a line number of the new text would mean nothing to the user
        raise ConfigError(re.sub(r"^line \d+: ", "", str(exc))) from None
    return text


def _lines(white: Sequence[str], accounts: Sequence[AccountFields]) -> Iterator[str]:
    yield f"{WHITE_ADDRESSES}:" if white else f"{WHITE_ADDRESSES}: []"
    yield from (f"- {_quoted(address)}" for address in white)
    yield f"{ACCOUNTS}:" if accounts else f"{ACCOUNTS}: []"
    for account in accounts:
        mark = "-"
        for name, value in account.items():
            if not isinstance(value, list):
                yield f"{mark} {name}: {_quoted(value)}"
            else:
                yield f"{mark} {name}:" if value else f"{mark} {name}: []"
                yield from (f"  - {_quoted(item)}" for item in value)
            mark = " "


def _quoted(value: str | bool) -> str:
    return json.dumps(value, ensure_ascii=False)  # YAML's double quotes have JSON's escapes
