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
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from triomq.protocol.acl.accounts import DENY, PUB, SUB, WORDS, Account
from triomq.protocol.acl.plain_acl import (
    ACCESS_KEY,
    SECRET_KEY,
    AccountFields,
    delete_account,
    read_rules,
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
_FIELDS: Final = {_TOPIC: ("topicPerms", "defaultTopicPerm"), _GROUP: ("groupPerms", "defaultGroupPerm")}
_NAME: Final = re.compile(r"[^\s=*]+")  # neither a pattern nor cut by the file's reader


# --- users --------------------------------------------------------------------------------------------------


def user_info(account: Account) -> UserInfo:
    """Return an account as a user, without its password."""
    return UserInfo(account.access_key, user_type="Super" if account.is_admin else "Normal", user_status="enable")


def create_user(text: str, user: UserInfo) -> str:
    """Add an account to the text of a file.

    Raises:
        ConfigError: the file is wrong, has the account already, or cannot express the user.
    """
    if user.username in read_rules(text).accounts:
        raise ConfigError(f"the user {user.username:.255} exists already")
    if not user.password:
        raise ConfigError("password is missing; triomq brokers do not show passwords, so users cannot be copied there")
    return set_account(text, {"admin": False} | _changes(user))


def update_user(text: str, user: UserInfo) -> str:
    """Change an account; the password and the type that are not given stay.

    Raises:
        ConfigError: the file is wrong, has no such account, or cannot express the user.
    """
    _existing(text, user.username)
    return set_account(text, _changes(user))


def delete_user(text: str, name: str) -> str:
    """Remove an account, if there is one.

    Raises:
        ConfigError: the file is wrong.
    """
    return delete_account(text, name) if name in read_rules(text).accounts else text


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


def _existing(text: str, name: str) -> Account:
    account = read_rules(text).accounts.get(name)
    if account is None:
        raise ConfigError(f"there is no user {name:.255}")
    return account


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


def acl_info(account: Account, part: str = "") -> AclInfo | None:
    """Return the policies of an account, if it has any: the entries with which RocketMQ 5 decides as the file does.

    ``part`` selects the entries whose resource contains it.
    """
    rights = _rights(account)
    entries: list[PolicyEntryInfo] = []
    for resource, right in rights.items():
        if part not in resource:
            continue
        if right == DENY:
            entries.append(PolicyEntryInfo(resource, ["All"], decision="Deny"))
            continue
        entries.append(PolicyEntryInfo(resource, _names(right), decision="Allow"))
        if by_default := rights.get(_default_of(resource), DENY) & ~right:
            entries.append(PolicyEntryInfo(resource, _names(by_default), decision="Deny"))
    return AclInfo(f"{_SUBJECT}{account.access_key}", [PolicyInfo("Custom", entries)]) if entries else None


def set_policies(text: str, name: str, policies: Iterable[PolicyInfo]) -> str:
    """Add entries to the policies of an account; one of the same resource is replaced.

    Raises:
        ConfigError: the file is wrong, has no such account, or cannot express an entry.
    """
    before = _rights(_existing(text, name))
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
    rights = _rights(_existing(text, name))
    if not rights:
        raise ConfigError(f"the user {name:.255} has no policies")
    if resource:
        rights.pop(_resource(resource), None)
    else:
        rights = {}
    return set_account(text, {ACCESS_KEY: name, **_fields(rights)})


def _names(actions: int) -> list[str]:
    return [name for name, right in _ACTIONS.items() if actions & right]


def _default_of(resource: str) -> str:
    return f"{resource.partition(':')[0]}:*"


def _rights(account: Account) -> dict[str, int]:
    """Return the rights by resource, without those on names that no topic or group can have."""
    defaults = {f"{_TOPIC}*": account.topic_right, f"{_GROUP}*": account.group_right}
    rights = {resource: right for resource, right in defaults.items() if right != DENY}
    for name, right in account.rights.items():
        group = name.removeprefix(RETRY_PREFIX)
        if _NAME.fullmatch(group):
            rights[_TOPIC + name if group == name else _GROUP + group] = right
    return rights


def _fields(rights: Mapping[str, int]) -> AccountFields:
    """Return the fields of an account with these rights."""
    changes: AccountFields = {}
    for prefix, (entries, default) in _FIELDS.items():
        words = {name.removeprefix(prefix): WORDS[right] for name, right in rights.items() if name.startswith(prefix)}
        changes[default] = words.pop("*", WORDS[DENY])
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
