"""Reads ``plain_acl.yml``, RocketMQ's file of accounts, in YAML 1.1.

Whatever RocketMQ would take for something else than is written, or silently ignore, is an error with its line.

Source: behaviour.md A.19; PlainPermissionManager.java, PlainAccessConfig.java.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

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
