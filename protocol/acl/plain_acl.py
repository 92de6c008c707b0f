"""Reads and changes ``plain_acl.yml``, RocketMQ's file of accounts, in YAML 1.1.

What RocketMQ would read in another sense than it is written, or silently ignore, is an error with its line.  A change
leads from the text of a file to a new text; the whole file is written anew, so comments go, as in RocketMQ.

Source: behaviour.md A.19; wire.md 7 (codes 50, 51, 53, 54); PlainPermissionManager.java, PlainAccessConfig.java.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import yaml

from triomq.protocol.acl.accounts import MIN_KEY_LENGTH, RIGHTS, Account, AclRules
from triomq.protocol.acl.addresses import AddressSet, parse_pattern, union
from triomq.protocol.acl.yaml_nodes import TAG, compose, error_at, fields_of, is_null, items_of, text_of
from triomq.protocol.errors import ConfigError
from triomq.protocol.names import retry_topic

WHITE_ADDRESSES: Final = "globalWhiteRemoteAddresses"
ACCOUNTS: Final = "accounts"
#: RocketMQ writes it when it changes the file.
DATA_VERSION: Final = "dataVersion"
ACCESS_KEY: Final = "accessKey"
SECRET_KEY: Final = "secretKey"  # noqa: S105  # the field's name
ACCOUNT_FIELDS: Final = (
    ACCESS_KEY,
    SECRET_KEY,
    "whiteRemoteAddress",
    "admin",
    "defaultTopicPerm",
    "defaultGroupPerm",
    "topicPerms",
    "groupPerms",
)
Value: TypeAlias = str | bool | list[str]
"""A field of an account."""
AccountFields: TypeAlias = dict[str, Value]
_COMMA: Final = re.compile(r",(?![^{}]*\})")
_PERMISSIONS: Final = ("topicPerms", "groupPerms")


def read_rules(text: str, places: dict[str, str] | None = None, name: str = "") -> AclRules:
    """Read the file's text; an empty one has no accounts.

    Args:
        text: of the file.
        places: where the accounts of other files are, by key; those of this one are added.
        name: of this file, in ``places``.

    Raises:
        ConfigError: it is no YAML, or something in it is wrong; the text begins with the line and shows no secret.
    """
    root = compose(text)
    if root is None or is_null(root):
        return AclRules()
    found = fields_of(root, (WHITE_ADDRESSES, ACCOUNTS, DATA_VERSION))
    white = union(_pattern(each) for each in items_of(found.get(WHITE_ADDRESSES)))
    accounts: dict[str, Account] = {}
    places = {} if places is None else places
    for node in items_of(found.get(ACCOUNTS)):
        account = _account(node)
        if account.access_key in places:
            raise error_at(node, f"accessKey {account.access_key} is given twice, also in {places[account.access_key]}")
        places[account.access_key] = f"{name} line {node.start_mark.line + 1}".strip()
        accounts[account.access_key] = account
    return AclRules(white, accounts)


def read_document(text: str) -> tuple[list[str], list[dict[str, Value]]]:
    """Return the global white addresses, and the fields of each account that have a value.

    Raises:
        ConfigError: as for :func:`read_rules`.
    """
    read_rules(text)
    root = compose(text)
    found = {} if root is None or is_null(root) else fields_of(root, (WHITE_ADDRESSES, ACCOUNTS, DATA_VERSION))
    white = [text_of(item, WHITE_ADDRESSES) for item in items_of(found.get(WHITE_ADDRESSES))]
    accounts = [
        {name: _value(value, name) for name, value in fields_of(node, ACCOUNT_FIELDS).items() if not is_null(value)}
        for node in items_of(found.get(ACCOUNTS))
    ]
    return [address for address in white if address], accounts


def _value(node: yaml.Node, name: str) -> Value:
    if isinstance(node, yaml.SequenceNode):
        return [text_of(item, name) for item in items_of(node)]
    return _flag(node) if name == "admin" else text_of(node, name)


def _account(node: yaml.Node) -> Account:
    found = fields_of(node, ACCOUNT_FIELDS)
    key, secret = (text_of(found.get(name), name) for name in ACCOUNT_FIELDS[:2])
    if len(key) <= MIN_KEY_LENGTH or len(secret) <= MIN_KEY_LENGTH:
        raise error_at(node, f"accessKey and secretKey must be longer than {MIN_KEY_LENGTH} characters")
    rights = _rights(found.get("groupPerms"), "groupPerms", retry_topic)
    rights |= _rights(found.get("topicPerms"), "topicPerms", str)
    return Account(
        key,
        secret,
        white=_pattern(found.get("whiteRemoteAddress")),
        is_admin=_flag(found.get("admin")),
        topic_right=_right(found.get("defaultTopicPerm"), "defaultTopicPerm"),
        group_right=_right(found.get("defaultGroupPerm"), "defaultGroupPerm"),
        rights=rights,
    )


def _pattern(node: yaml.Node | None) -> AddressSet:
    try:
        return parse_pattern(text_of(node, "an address"))
    except ConfigError as exc:
        if node is None or str(exc).startswith("line "):
            raise
        raise error_at(node, str(exc)) from None


def _flag(node: yaml.Node | None) -> bool:
    if node is None or is_null(node):
        return False
    if isinstance(node, yaml.ScalarNode):
        word = node.value.lower()
        if node.tag == f"{TAG}bool" and word in yaml.constructor.SafeConstructor.bool_values:
            return bool(yaml.constructor.SafeConstructor.bool_values[word])
        if word in ("true", "false"):
            return bool(word == "true")
    raise error_at(node, "admin must be true or false")


def _right(node: yaml.Node | None, name: str) -> int:
    word = text_of(node, name)
    if node is None or not word:
        return RIGHTS["DENY"]
    return _word(node, word.strip())


def _word(node: yaml.Node, word: str) -> int:
    if word not in RIGHTS:
        raise error_at(node, f"{word!r:.40} is no right, and would mean DENY: write {', '.join(RIGHTS)}")
    return RIGHTS[word]


def _rights(node: yaml.Node | None, name: str, resource: Callable[[str], str]) -> dict[str, int]:
    rights: dict[str, int] = {}
    for item in items_of(node):
        text = text_of(item, name)
        subject, equals, word = text.partition("=")
        subject = subject.strip()
        if not equals or not subject:
            raise error_at(item, f"{name}: {text!r:.80} is not NAME=RIGHT")
        if resource(subject) in rights:
            raise error_at(item, f"{name}: {subject} is given twice")
        rights[resource(subject)] = _word(item, word.strip())
    return rights


# --- changes ------------------------------------------------------------------------------------------------


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
