"""The accounts of brokers, and what one of them may do with a topic or a group, and why."""

from typing import Any, Final

from triomq.client.admin.accounts import AccountFields, judge_account
from triomq.dashboard.view import NoRightError, NotFoundError, Page, View, is_about_account, slice_of


async def accounts(view: View) -> dict[str, Any]:
    """Return the accounts of each broker, and the verdicts about the one that the form names.

    Raises:
        NoRightError: the brokers with accounts refuse to list them.
        NotFoundError: no broker has the account.
    """
    key, topic, group = (view.query.get(name, "").strip() for name in ("key", "topic", "group"))
    view.command("acl", "list")
    view.check_brokers()
    brokers = await view.sampled.remembered("accounts", view.admin.accounts)
    refusals = [each for each in brokers if is_about_account(each.error or "")]
    if refusals and not any(each.accounts for each in brokers):
        raise NoRightError(f"broker {refusals[0].name}: {refusals[0].error}")
    rows = [(broker, row_of(fields)) for broker in brokers for fields in broker.accounts or ()]
    verdicts = []
    if key:
        options = [*(["--topic", topic] if topic else []), *(["--group", group] if group else [])]
        view.command("acl", "check", key, *options)
        verdicts = [
            (broker, verdict)
            for broker in brokers
            for fields in broker.accounts or ()
            if fields.get("accessKey") == key
            for verdict in judge_account(fields, topic or None, group or None)
        ]
        if not verdicts:
            raise NotFoundError(f"no broker has the account {key!r}")
    return {
        "part": slice_of(rows, view.page_number),
        "keys": sorted({row["key"] for _, row in rows}),
        "without": [each for each in brokers if each.accounts is None],
        "verdicts": verdicts,
        "key": key,
        "topic": topic,
        "group": group,
    }


def row_of(fields: AccountFields) -> dict[str, Any]:
    """Return an account as the page shows it."""
    return {
        "key": str(fields.get("accessKey") or ""),
        "is_admin": bool(fields.get("admin")),
        "addresses": str(fields.get("whiteRemoteAddress") or ""),
        "topic_default": str(fields.get("defaultTopicPerm") or "DENY"),
        "group_default": str(fields.get("defaultGroupPerm") or "DENY"),
        "topics": [str(each) for each in fields.get("topicPerms") or ()],
        "groups": [str(each) for each in fields.get("groupPerms") or ()],
    }


PAGES: Final = (Page("accounts", "Accounts", accounts, "accounts.html", nav="Accounts"),)
