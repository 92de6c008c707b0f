"""Users and policies of RocketMQ 5 in the file of accounts, compared with the decisions of RocketMQ 5."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.protocol.acl.accounts import PUB, RIGHTS, SUB, Account
from triomq.protocol.acl.plain_acl import read_rules, set_account
from triomq.protocol.acl.users import (
    acl_info,
    create_user,
    delete_policies,
    delete_user,
    set_policies,
    update_user,
    user_info,
    user_of,
)
from triomq.protocol.bodies.users import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from triomq.protocol.errors import ConfigError, RefusedError
from triomq.protocol.names import retry_topic

NAME: Final = "somebody"
SECRET: Final = "some-secret"
USER: Final = UserInfo(NAME, SECRET)
EMPTY: Final = create_user("", USER)
ACTIONS: Final = {"Pub": PUB, "Sub": SUB}
NAMES: Final = ("a", "b")


def account_of(text: str) -> Account:
    return read_rules(text).accounts[NAME]


def entry(resource: str, *actions: str, decision: str = "Allow", **others: Any) -> PolicyEntryInfo:
    return PolicyEntryInfo(resource, list(actions), decision=decision, **others)


def custom(*entries: PolicyEntryInfo, policy_type: str = "") -> list[PolicyInfo]:
    return [PolicyInfo(policy_type, list(entries))]


@dataclass
class RocketMQ:
    """How RocketMQ 5 keeps the policies of a user, and decides by them.  Source: AclAuthorizationHandler.java."""

    entries: list[PolicyEntryInfo] = field(default_factory=list)

    def set(self, given: PolicyEntryInfo) -> None:
        self.delete(given.resource)
        self.entries.append(given)

    def delete(self, resource: str) -> None:
        self.entries = [each for each in self.entries if each.resource != resource]

    def allows(self, resource: str, action: str) -> bool:
        for wanted in (resource, f"{resource.partition(':')[0]}:*"):
            for each in self.entries:
                if each.resource == wanted and {action, "All"} & set(each.actions):
                    return each.decision == "Allow"
        return False


def questions() -> Iterator[tuple[str, str, str, int]]:
    """Yield each resource and action, with the resource and right for the file."""
    for name, (action, right) in product((*NAMES, "other"), ACTIONS.items()):
        yield f"Topic:{name}", action, name, right
        yield f"Group:{name}", action, retry_topic(name), right


def assert_same(account: Account, rocketmq: RocketMQ) -> None:
    for resource, action, name, right in questions():
        assert account.may(name, right) == rocketmq.allows(resource, action), (resource, action)


WORDS: Final = st.sampled_from(["DENY", "PUB", "SUB", "PUB|SUB"])
PERMISSIONS: Final = st.dictionaries(st.sampled_from(NAMES), WORDS).map(
    lambda found: [f"{k}={found[k]}" for k in found]
)
FILES: Final = st.fixed_dictionaries(
    {},
    optional={
        "admin": st.booleans(), "defaultTopicPerm": WORDS, "defaultGroupPerm": WORDS, "topicPerms": PERMISSIONS,
        "groupPerms": PERMISSIONS,
    },
)  # fmt: skip


@given(FILES)
def test_what_is_listed_makes_the_same_account(fields: dict[str, Any]) -> None:
    text = set_account("", {"accessKey": NAME, "secretKey": SECRET, **fields})
    user, acl = user_info(account_of(text)), acl_info(account_of(text))
    assert user.password is None
    user.password = SECRET
    copy = create_user("", user)
    if acl is not None:
        copy = set_policies(copy, user_of(acl.subject), acl.policies)
    assert account_of(copy) == account_of(text)


@given(FILES)
def test_rocketmq_decides_by_the_list_as_the_file(fields: dict[str, Any]) -> None:
    text = set_account("", {"accessKey": NAME, "secretKey": SECRET, **fields, "admin": False})
    acl = acl_info(account_of(text))
    assert_same(account_of(text), RocketMQ([] if acl is None else acl.policies[0].entries))


RESOURCES: Final = st.sampled_from([f"{kind}:{name}" for kind in ("Topic", "Group") for name in (*NAMES, "*")])
ENTRIES: Final = st.builds(
    PolicyEntryInfo,
    RESOURCES,
    st.sampled_from([["Pub"], ["Sub"], ["Pub", "Sub"], ["All"]]),
    decision=st.sampled_from(["Allow", "Allow", "Deny"]),
)


@given(st.lists(ENTRIES | RESOURCES, max_size=8))
def test_changes_that_pass_decide_as_in_rocketmq(changes: list[PolicyEntryInfo | str]) -> None:
    text, rocketmq = EMPTY, RocketMQ()
    for change in changes:
        refused = ""
        try:
            if isinstance(change, str):
                text = delete_policies(text, NAME, change)
                rocketmq.delete(change)
            else:
                text = set_policies(text, NAME, custom(change))
                rocketmq.set(change)
        except ConfigError as exc:
            refused = str(exc)
        reasons = ("no equivalent", "deny All", "in both", "no policies")
        assert not refused or any(reason in refused for reason in reasons)
        assert_same(account_of(text), rocketmq)


def test_users_become_accounts_and_back() -> None:
    text = create_user("", UserInfo(NAME, SECRET, "SUPER", "Enable"))
    assert account_of(text) == Account(NAME, SECRET, is_admin=True)
    text = update_user(text, UserInfo(NAME, user_type="Normal"))
    assert account_of(text) == Account(NAME, SECRET)
    text = update_user(text, UserInfo(NAME, "other-secret"))
    assert account_of(text) == Account(NAME, "other-secret")
    assert user_info(account_of(text)) == UserInfo(NAME, None, "Normal", "enable")
    text = delete_user(text, NAME)
    assert not read_rules(text).accounts
    assert delete_user(text, NAME) == text


def test_policies_become_rights_of_the_file() -> None:
    defaults = PolicyInfo("Default", [entry("Topic:*", "Pub"), entry("group:*", "SUB", decision="ALLOW")])
    entries = [
        entry("Topic:a", "Pub"),
        entry("Topic:a", "Sub", decision="Deny"),
        entry("Group:b", "All", decision="Deny"),
    ]
    text = set_policies(EMPTY, NAME, [PolicyInfo("Custom", entries), defaults])
    rights = {"a": PUB, retry_topic("b"): RIGHTS["DENY"]}
    assert account_of(text) == Account(NAME, SECRET, topic_right=PUB, group_right=SUB, rights=rights)
    found = acl_info(account_of(text), "Group")
    assert found is not None
    assert [each.resource for each in found.policies[0].entries] == ["Group:*", "Group:b"]
    text = delete_policies(text, NAME, "Topic:*")
    assert account_of(text) == Account(NAME, SECRET, group_right=SUB, rights=rights)
    assert account_of(delete_policies(text, NAME)) == Account(NAME, SECRET)


def test_names_that_mean_something_else_are_not_listed() -> None:
    perms = ["*=PUB|SUB", "a*=PUB", "%RETRY%b=SUB"]
    text = set_account(EMPTY, {"accessKey": NAME, "topicPerms": perms, "groupPerms": ["*=SUB"]})
    assert acl_info(account_of(text)) == AclInfo(f"User:{NAME}", custom(entry("Group:b", "Sub"), policy_type="Custom"))


def set_entry(given: PolicyEntryInfo, policy_type: str = "") -> str:
    return set_policies(EMPTY, NAME, [PolicyInfo(policy_type, [given])])


_BY_DEFAULT: Final = set_policies(EMPTY, NAME, custom(entry("Topic:*", "Sub")))
_ONLY_PUB: Final = set_policies(EMPTY, NAME, custom(entry("Topic:a", "Pub")))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda: create_user(EMPTY, USER), "the user somebody exists already"),
        (lambda: create_user("", UserInfo(NAME)), "password is missing"),
        (lambda: create_user("", UserInfo(NAME, "short")), "longer than 6"),
        (lambda: create_user("", UserInfo(NAME, SECRET, "Guest")), "userType Guest"),
        (lambda: update_user(EMPTY, UserInfo(NAME, user_status="disable")), "userStatus disable"),
        (lambda: update_user("", USER), "there is no user somebody"),
        (lambda: user_of("Role:somebody"), "subject Role:somebody"),
        (lambda: user_of("somebody"), "subject somebody"),
        (lambda: delete_policies(EMPTY, NAME), "has no policies"),
        (lambda: set_policies(EMPTY, NAME, []), "policies are missing"),
        (lambda: set_entry(entry("Cluster:*", "Pub")), r"resource Cluster:\*"),
        (lambda: set_entry(entry("*", "Pub")), r"resource \*"),
        (lambda: set_entry(entry("Topic:order*", "Pub")), r"resource Topic:order\*"),
        (lambda: set_entry(entry("Topic:a=PUB", "Sub")), "resource Topic:a=PUB"),
        (lambda: set_entry(entry("Topic:", "Sub")), "resource Topic:"),
        (lambda: set_entry(entry("Topic:%RETRY%a", "Sub")), "write the group's name"),
        (lambda: set_entry(entry("Topic:a", "Pub"), "Default"), "policyType Default of Topic:a"),
        (lambda: set_entry(entry("Topic:*", "Pub"), "Other"), "policyType Other"),
        (lambda: set_entry(entry("Topic:a", "All")), "action All"),
        (lambda: set_entry(entry("Topic:a", "Pub", "Update")), "action Update"),
        (lambda: set_entry(entry("Topic:a")), "actions are missing"),
        (lambda: set_entry(entry("Topic:a", "Pub", decision="")), "decision  is neither"),
        (lambda: set_entry(entry("Topic:a", "Pub", source_ips=["10.0.0.1"])), "sourceIps"),
        (lambda: set_entry(entry("Topic:a", "Pub", decision="Deny")), "only denies Pub"),
        (
            lambda: set_policies(
                EMPTY, NAME, custom(entry("Topic:a", "Pub"), entry("Topic:a", "All", decision="Deny"))
            ),
            "both allows and denies Pub",
        ),
        (lambda: set_policies(_BY_DEFAULT, NAME, custom(entry("Topic:a", "Pub"))), r"Topic:a: Topic:\* allows Sub"),
        (lambda: set_policies(_ONLY_PUB, NAME, custom(entry("Topic:*", "Sub"))), r"Topic:a: Topic:\* allows Sub"),
    ],
)
def test_what_the_file_cannot_express_is_refused(change: Callable[[], object], reason: str) -> None:
    with pytest.raises((ConfigError, RefusedError), match=reason) as caught:
        change()
    assert SECRET not in str(caught.value)
