"""``triomq acl``: the accounts of running brokers; their secrets are neither shown nor given on the command line."""

from collections.abc import Mapping
from typing import Any, Final

from triomq.cli.arguments.admin_options import AclCheckOptions, AclDeleteOptions, AclListOptions, AclSetOptions
from triomq.cli.errors import UsageError
from triomq.cli.output import escape_controls, write_records, write_result
from triomq.cli.session import client_command, open_brokers
from triomq.client.admin.accounts import judge_account, read_accounts
from triomq.client.config import load_credentials
from triomq.protocol.codes import RequestCode
from triomq.protocol.requests.groups import DeleteAccountRequestHeader, UpdateAccountRequestHeader

_COLUMNS: Final = ("BROKER", "ACCOUNT", "ADMIN", "ADDRESSES", "TOPIC DEFAULT", "GROUP DEFAULT", "TOPICS", "GROUPS")


@client_command
async def list_accounts(options: AclListOptions) -> None:
    """Write the accounts of each broker.

    Raises:
        BrokerResponseError: the broker has no accounts, or the caller is no administrator.
    """
    records = []
    async with open_brokers(options, options.broker) as (instance, addresses):
        for address in addresses:
            records += [_record(address, fields) for fields in await read_accounts(instance, address)]
    write_records(_COLUMNS, records, as_json=options.json)


@client_command
async def set_one(options: AclSetOptions) -> None:
    """Add an account to each broker, or change it there; other fields stay.

    Raises:
        ConfigError, UsageError: the secret cannot be read, or is that of another account.
        BrokerResponseError: a broker refuses, and says why.
    """
    given = None if options.secret is None else load_credentials(options.secret)
    if given is not None and given.access_key != options.key:
        raise UsageError(f"--secret {options.secret}: this is the account {given.access_key}, not {options.key}")
    async with open_brokers(options, options.broker) as (instance, addresses):
        for address in addresses:
            known = {str(fields.get("accessKey")): fields for fields in await read_accounts(instance, address)}
            before = known.get(options.key)
            header = UpdateAccountRequestHeader(
                options.key,
                admin=bool(before and before.get("admin")) if options.admin is None else options.admin == "yes",
                secret_key=None if given is None else given.secret_key,
                white_remote_address=options.address,
                default_topic_perm=options.topic_default,
                default_group_perm=options.group_default,
                topic_perms=",".join(options.topic) or None,
                group_perms=",".join(options.group) or None,
            )
            await instance.requests.ask(address, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, header)
            _write(options.key, address, "added" if before is None else "changed", as_json=options.json)


@client_command
async def delete(options: AclDeleteOptions) -> None:
    """Delete an account from each broker.

    Raises:
        BrokerResponseError: a broker refuses, and says why.
    """
    header = DeleteAccountRequestHeader(options.key)
    async with open_brokers(options, options.broker) as (instance, addresses):
        for address in addresses:
            await instance.requests.ask(address, RequestCode.DELETE_ACL_CONFIG, header)
            _write(options.key, address, "deleted", as_json=options.json)


@client_command
async def check(options: AclCheckOptions) -> None:
    """Write the rights of an account for a topic and a group, with the reason.

    Raises:
        UsageError: a broker has no such account.
    """
    records: list[dict[str, Any]] = []
    async with open_brokers(options, options.broker) as (instance, addresses):
        for address in addresses:
            found = [each for each in await read_accounts(instance, address) if each.get("accessKey") == options.key]
            if not found:
                raise UsageError(f"{address} has no account {options.key}; triomq acl list shows those it has")
            records += (
                {"broker": address, "what": each.action, "allowed": each.is_allowed, "why": each.reason}
                for each in judge_account(found[0], options.topic, options.group)
            )
    write_records(("BROKER", "WHAT", "ALLOWED", "WHY"), records, as_json=options.json)


def _record(address: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "broker": address,
        "account": fields.get("accessKey"),
        "admin": bool(fields.get("admin")),
        "addresses": fields.get("whiteRemoteAddress") or "",
        "topic_default": fields.get("defaultTopicPerm") or "DENY",
        "group_default": fields.get("defaultGroupPerm") or "DENY",
        "topics": ",".join(fields.get("topicPerms") or ()),
        "groups": ",".join(fields.get("groupPerms") or ()),
    }


def _write(key: str, address: str, verb: str, *, as_json: bool) -> None:
    result = {"account": key, "broker": address, "done": verb}
    write_result(result, escape_controls(f"account {key} {verb} at {address}"), as_json=as_json)
