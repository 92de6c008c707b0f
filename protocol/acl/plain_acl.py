"""Reads ``plain_acl.yml``, RocketMQ's file of accounts, in YAML 1.1.

Whatever RocketMQ would take for something else than is written, or silently ignore, is an error with its line.

Source: behaviour.md A.19; PlainPermissionManager.java, PlainAccessConfig.java.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, TypeAlias

import yaml

from triomq.protocol.acl.accounts import MIN_KEY_LENGTH, RIGHTS, Account, AclRules
from triomq.protocol.acl.addresses import AddressSet, parse_pattern, union
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

_TAG: Final = "tag:yaml.org,2002:"
_EXPONENT: Final = re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+")  # a number for RocketMQ, text for PyYAML
_QUOTED: Final = re.compile(r"""'.*'|".*\"""", re.DOTALL)


def read_rules(text: str) -> AclRules:
    """Read the file's text; an empty one has no accounts.

    Raises:
        ConfigError: it is no YAML, or something in it is wrong; the text begins with the line and shows no secret.
    """
    root = _compose(text)
    if root is None or _is_null(root):
        return AclRules()
    found = _fields(root, (WHITE_ADDRESSES, ACCOUNTS, DATA_VERSION))
    white = union(_pattern(each) for each in _items(found.get(WHITE_ADDRESSES)))
    accounts: dict[str, Account] = {}
    for node in _items(found.get(ACCOUNTS)):
        account = _account(node)
        if account.access_key in accounts:
            raise _error(node, f"accessKey {account.access_key} is given twice")
        accounts[account.access_key] = account
    return AclRules(white, accounts)


def read_document(text: str) -> tuple[list[str], list[dict[str, Value]]]:
    """Return the global white addresses, and the fields of each account that have a value.

    Raises:
        ConfigError: as for :func:`read_rules`.
    """
    read_rules(text)
    root = _compose(text)
    found = {} if root is None or _is_null(root) else _fields(root, (WHITE_ADDRESSES, ACCOUNTS, DATA_VERSION))
    white = [_text(item, WHITE_ADDRESSES) for item in _items(found.get(WHITE_ADDRESSES))]
    accounts = [
        {name: _value(value, name) for name, value in _fields(node, ACCOUNT_FIELDS).items() if not _is_null(value)}
        for node in _items(found.get(ACCOUNTS))
    ]
    return [address for address in white if address], accounts


def _value(node: yaml.Node, name: str) -> Value:
    if isinstance(node, yaml.SequenceNode):
        return [_text(item, name) for item in _items(node)]
    return _flag(node) if name == "admin" else _text(node, name)


def _compose(text: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        where = f"line {mark.line + 1}: " if mark is not None else ""
        problem = _QUOTED.sub("...", str(exc.problem or exc.context))  # it may be a secret
        raise ConfigError(f"{where}this is not YAML: {problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise ConfigError(f"this is not YAML: {type(exc).__name__}") from None


def _error(node: yaml.Node, reason: str) -> ConfigError:
    return ConfigError(f"line {node.start_mark.line + 1}: {reason}")


def _is_null(node: yaml.Node) -> bool:
    return bool(node.tag == f"{_TAG}null")


def _fields(node: yaml.Node, known: tuple[str, ...]) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        raise _error(node, f"here belong the fields {', '.join(known)}")
    found: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else ""
        if name not in known:
            raise _error(key, f"there is no field {name!r:.40}, only {', '.join(known)}")
        if name in found:
            raise _error(key, f"{name} is given twice")
        found[name] = value
    return found


def _items(node: yaml.Node | None) -> Iterator[yaml.Node]:
    if node is None or _is_null(node):
        return
    if not isinstance(node, yaml.SequenceNode):
        raise _error(node, "here belongs a list, each item after a -")
    yield from node.value


def _text(node: yaml.Node | None, name: str) -> str:
    """Return text, "" for none; a whole number becomes what YAML 1.1 makes of it, as in RocketMQ."""
    if node is None or _is_null(node):
        return ""
    if isinstance(node, yaml.ScalarNode):
        if node.tag == f"{_TAG}int":
            with suppress(ValueError):  # digits without a digit, or very many
                return str(yaml.constructor.SafeConstructor().construct_yaml_int(node))
        if node.tag == f"{_TAG}str" and not (node.style is None and _EXPONENT.fullmatch(node.value)):
            return str(node.value)
    raise _error(node, f"{name} is not text: put it in quotes")


def _account(node: yaml.Node) -> Account:
    found = _fields(node, ACCOUNT_FIELDS)
    key, secret = (_text(found.get(name), name) for name in ACCOUNT_FIELDS[:2])
    if len(key) <= MIN_KEY_LENGTH or len(secret) <= MIN_KEY_LENGTH:
        raise _error(node, f"accessKey and secretKey must be longer than {MIN_KEY_LENGTH} characters")
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
        return parse_pattern(_text(node, "an address"))
    except ConfigError as exc:
        if node is None or str(exc).startswith("line "):
            raise
        raise _error(node, str(exc)) from None


def _flag(node: yaml.Node | None) -> bool:
    if node is None or _is_null(node):
        return False
    if isinstance(node, yaml.ScalarNode):
        word = node.value.lower()
        if node.tag == f"{_TAG}bool" and word in yaml.constructor.SafeConstructor.bool_values:
            return bool(yaml.constructor.SafeConstructor.bool_values[word])
        if word in ("true", "false"):
            return bool(word == "true")
    raise _error(node, "admin must be true or false")


def _right(node: yaml.Node | None, name: str) -> int:
    word = _text(node, name)
    if node is None or not word:
        return RIGHTS["DENY"]
    return _word(node, word.strip())


def _word(node: yaml.Node, word: str) -> int:
    if word not in RIGHTS:
        raise _error(node, f"{word!r:.40} is no right, and would mean DENY: write {', '.join(RIGHTS)}")
    return RIGHTS[word]


def _rights(node: yaml.Node | None, name: str, resource: Callable[[str], str]) -> dict[str, int]:
    rights: dict[str, int] = {}
    for item in _items(node):
        text = _text(item, name)
        subject, equals, word = text.partition("=")
        subject = subject.strip()
        if not equals or not subject:
            raise _error(item, f"{name}: {text!r:.80} is not NAME=RIGHT")
        if resource(subject) in rights:
            raise _error(item, f"{name}: {subject} is given twice")
        rights[resource(subject)] = _word(item, word.strip())
    return rights
