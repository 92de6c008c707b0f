"""Users and policies of RocketMQ 5 in terms of ``plain_acl.yml``, both ways.

A user is an account: its name is the access key, its password the secret, and the type Super means ``admin``.  The
entries of its policies are ``topicPerms`` and ``groupPerms``; those of ``Topic:*`` and ``Group:*`` are the default
rights.  RocketMQ migrates the file in this way.

In RocketMQ 5 an entry decides about the actions that it names, and less specific entries about the others.  In the file
an entry decides about both rights.  So a list names both where that matters, and a change that would mean something
else in the file is refused, as is everything for which the file has no words.

Source: AuthMigrator.java, AclAuthorizationHandler.java, AuthorizationMetadataManagerImpl.java of 5.5.0.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from triomq.protocol.acl.accounts import DENY, PUB, RIGHTS, SUB, WORDS
from triomq.protocol.acl.plain_acl import (
    ACCESS_KEY,
    SECRET_KEY,
    AccountFields,
    delete_account,
    read_document,
    set_account,
)
from triomq.protocol.bodies.users import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import ConfigError, RefusedError
from triomq.protocol.names import RETRY_PREFIX

_BOTH: Final = PUB | SUB
_ACTIONS: Final = {"Pub": PUB, "Sub": SUB}
_SUBJECT: Final = "User:"
_TYPES: Final = {"super": True, "normal": False}
_TOPIC: Final = "Topic:"
_GROUP: Final = "Group:"
#: The fields of an account by the prefix of resources: of entries, and of the default.
_FIELDS: Final = {_GROUP: ("groupPerms", "defaultGroupPerm"), _TOPIC: ("topicPerms", "defaultTopicPerm")}
_NAME: Final = re.compile(r"[^\s=*]+")  # neither a pattern nor cut by the file's reader


# --- users --------------------------------------------------------------------------------------------------


def list_users(texts: Iterable[str], part: str = "") -> list[UserInfo]:
    """Return the accounts whose keys contain ``part`` as users, without passwords, from the texts of all files.

    Raises:
        ConfigError: a file is wrong.
    """
    return [_user(fields) for fields in _accounts(texts) if part in str(fields[ACCESS_KEY])]


def get_user(texts: Iterable[str], name: str) -> UserInfo | None:
    """Return an account as a user, without its password, if there is one.

    Raises:
        ConfigError: a file is wrong.
    """
    fields = _find(texts, name)
    return None if fields is None else _user(fields)


def create_user(text: str, user: UserInfo) -> str:
    """Add an account to the text of a file.

    Raises:
        ConfigError: the file is wrong, has the account already, or cannot express the user.
    """
    if _find([text], user.username) is not None:
        raise ConfigError(f"the user {user.username:.255} exists already")
    if not user.password:
        raise ConfigError("password is missing; triomq brokers do not show passwords, so users cannot be copied there")
    return set_account(text, {"admin": False} | _changes(user))


def update_user(text: str, user: UserInfo) -> str:
    """Change an account; the password and the type that are not given stay.

    Raises:
        ConfigError: the file is wrong, has no such account, or cannot express the user.
    """
    _existing([text], user.username)
    return set_account(text, _changes(user))


def delete_user(text: str, name: str) -> str:
    """Remove an account, if there is one.

    Raises:
        ConfigError: the file is wrong.
    """
    return text if _find([text], name) is None else delete_account(text, name)


def _user(fields: AccountFields) -> UserInfo:
    user_type = "Super" if fields.get("admin") else "Normal"
    return UserInfo(str(fields[ACCESS_KEY]), user_type=user_type, user_status="enable")


def _changes(user: UserInfo) -> AccountFields:
    if user.user_status.lower() not in ("", "enable"):
        raise ConfigError(f"userStatus {user.user_status:.40} has no equivalent in plain_acl.yml: delete the user")
    changes: AccountFields = {ACCESS_KEY: user.username}
    if user.password:
        changes[SECRET_KEY] = user.password
    if user.user_type:
        if user.user_type.lower() not in _TYPES:
            raise ConfigError(f"userType {user.user_type:.40} is neither Super nor Normal")
        changes["admin"] = _TYPES[user.user_type.lower()]
    return changes


def _accounts(texts: Iterable[str]) -> Iterator[AccountFields]:
    for text in texts:
        yield from read_document(text)[1]


def _find(texts: Iterable[str], name: str) -> AccountFields | None:
    return next((fields for fields in _accounts(texts) if fields[ACCESS_KEY] == name), None)


def _existing(texts: Iterable[str], name: str) -> AccountFields:
    fields = _find(texts, name)
    if fields is None:
        raise ConfigError(f"there is no user {name:.255}")
    return fields


# --- policies -----------------------------------------------------------------------------------------------


def user_of(subject: str) -> str:
    """Return the name in a subject such as ``User:operator``.

    Raises:
        RefusedError: it is no user.
    """
    kind, colon, name = subject.partition(":")
    if kind.lower() + colon != _SUBJECT.lower():
        raise RefusedError(f"subject {subject:.255} is not User:NAME", ResponseCode.NO_PERMISSION)
    return name


def list_policies(texts: Iterable[str], subject: str = "", resource: str = "") -> list[AclInfo]:
    """Return the policies of the accounts that have any, from the texts of all files.

    Args:
        texts: of the files.
        subject: only of accounts whose subject contains it.
        resource: only entries whose resource contains it.

    Raises:
        ConfigError: a file is wrong.
    """
    found = (_policies(fields, resource) for fields in _accounts(texts))
    return [acl for acl in found if acl is not None and subject in acl.subject]


def get_policies(texts: Iterable[str], name: str) -> AclInfo | None:
    """Return the policies of an account, if it has any.

    Raises:
        ConfigError: a file is wrong, or there is no such account.
    """
    return _policies(_existing(texts, name))


def set_policies(text: str, name: str, policies: Iterable[PolicyInfo]) -> str:
    """Add entries to the policies of an account; one of the same resource is replaced.

    Raises:
        ConfigError: the file is wrong, has no such account, or cannot express an entry.
    """
    before = _rights(_existing([text], name))
    given: dict[str, list[int]] = {}  # denied and allowed actions
    for policy in policies:
        for entry in policy.entries:
            is_allowed, actions = _decision(entry)
            given.setdefault(_resource(entry.resource, policy.policy_type), [DENY, DENY])[is_allowed] |= actions
    if not given:
        raise ConfigError("policies are missing")
    for resource, (denied, allowed) in given.items():
        if denied & allowed:
            raise ConfigError(f"{resource:.255} both allows and denies {_names(denied & allowed)[0]}")
        if not allowed and denied != _BOTH:
            (action,) = _names(denied)
            raise ConfigError(f"{resource:.255} only denies {action}, but plain_acl.yml can deny both alone: deny All")
    after = before | {resource: allowed for resource, (_, allowed) in given.items()}
    _check_defaults(before, after, given)
    return set_account(text, {ACCESS_KEY: name, **_fields(after)})


def delete_policies(text: str, name: str, resource: str = "") -> str:
    """Remove the entry of a resource from the policies of an account, or all entries.

    Raises:
        ConfigError: the file is wrong, has no such account, or the account has no policies.
    """
    rights = _rights(_existing([text], name))
    if not rights:
        raise ConfigError(f"the user {name:.255} has no policies")
    if resource:
        rights.pop(_resource(resource), None)
    else:
        rights = {}
    return set_account(text, {ACCESS_KEY: name, **_fields(rights)})


def _policies(fields: AccountFields, resource: str = "") -> AclInfo | None:
    entries = [entry for entry in _entries(_rights(fields)) if resource in entry.resource]
    return AclInfo(f"{_SUBJECT}{fields[ACCESS_KEY]}", [PolicyInfo("Custom", entries)]) if entries else None


def _entries(rights: Mapping[str, int]) -> Iterator[PolicyEntryInfo]:
    """Yield the entries with which RocketMQ 5 decides as the file does."""
    for resource, right in rights.items():
        if right == DENY:
            yield PolicyEntryInfo(resource, ["All"], decision="Deny")
            continue
        yield PolicyEntryInfo(resource, _names(right), decision="Allow")
        if by_default := rights.get(_default_of(resource), DENY) & ~right:
            yield PolicyEntryInfo(resource, _names(by_default), decision="Deny")


def _names(actions: int) -> list[str]:
    return [name for name, right in _ACTIONS.items() if actions & right]


def _default_of(resource: str) -> str:
    return f"{resource.partition(':')[0]}:*"


def _rights(fields: AccountFields) -> dict[str, int]:
    """Return the rights by resource, without those on names that no topic or group can have."""
    rights = {}
    for prefix, (entries, default) in _FIELDS.items():
        if word := str(fields.get(default) or "").strip():
            rights[f"{prefix}*"] = RIGHTS[word]
        items = fields.get(entries)
        for item in items if isinstance(items, list) else ():
            name, _, word = (each.strip() for each in item.partition("="))
            is_retry = prefix == _TOPIC and name.startswith(RETRY_PREFIX)
            resource = _GROUP + name.removeprefix(RETRY_PREFIX) if is_retry else prefix + name
            if _NAME.fullmatch(name):
                rights[resource] = RIGHTS[word]
    return rights


def _fields(rights: Mapping[str, int]) -> AccountFields:
    """Return the fields of an account with these rights."""
    changes: AccountFields = {}
    for prefix, (entries, default) in _FIELDS.items():
        words = {name.removeprefix(prefix): WORDS[right] for name, right in rights.items() if name.startswith(prefix)}
        changes[default] = words.pop("*", "")
        changes[entries] = [f"{name}={word}" for name, word in words.items()]
    return changes


def _decision(entry: PolicyEntryInfo) -> tuple[bool, int]:
    """Return whether an entry allows its actions, and the actions."""
    at, decision = f"{entry.resource:.255}: ", entry.decision.lower()
    if decision not in ("allow", "deny"):
        raise ConfigError(f"{at}decision {entry.decision:.40} is neither Allow nor Deny")
    if entry.source_ips:
        raise ConfigError(f"{at}sourceIps have no equivalent in plain_acl.yml: its rights hold for all addresses")
    known = {name.lower(): right for name, right in _ACTIONS.items()}
    if decision == "deny":
        known["all"] = _BOTH  # only administrators have the others
    actions = DENY
    for action in entry.actions:
        if action.lower() not in known:
            raise ConfigError(f"{at}action {action:.40} has no equivalent in plain_acl.yml: allow Pub, Sub, or both")
        actions |= known[action.lower()]
    if not actions:
        raise ConfigError(f"{at}actions are missing")
    return decision == "allow", actions


def _resource(resource: str, policy_type: str = "") -> str:
    """Return a resource as :func:`_rights` names it."""
    prefix, _, name = resource.partition(":")
    prefix = f"{prefix.capitalize()}:"
    if prefix not in _FIELDS:
        raise ConfigError(
            f"resource {resource:.255} has no equivalent in plain_acl.yml: write Topic:NAME or Group:NAME"
        )
    if name != "*" and _NAME.fullmatch(name) is None:
        raise ConfigError(f"resource {resource:.255} has no equivalent in plain_acl.yml: write a name, or * alone")
    if name.startswith(RETRY_PREFIX):
        raise ConfigError(f"resource {resource:.255}: write the group's name for its retry topic")
    if policy_type.lower() not in ("", "custom") and (policy_type.lower(), name) != ("default", "*"):
        raise ConfigError(f"policyType {policy_type:.40} of {resource:.255} has no equivalent in plain_acl.yml")
    return prefix + name


def _check_defaults(before: Mapping[str, int], after: Mapping[str, int], given: Mapping[str, Sequence[int]]) -> None:
    """Refuse a change after which an entry denies an action that RocketMQ 5 leaves to the default, which allows it."""
    for resource, right in after.items():
        default = _default_of(resource)
        if resource in given:
            decided = given[resource][0] | given[resource][1]
        else:
            decided = right | before.get(default, DENY) if right else _BOTH
        if missing := after.get(default, DENY) & ~decided:
            action = _names(missing)[0]
            reason = f"{default} allows {action}, and in plain_acl.yml an entry without {action} denies it"
            raise ConfigError(f"{resource:.255}: {reason}; allow {action} in both or in none")
