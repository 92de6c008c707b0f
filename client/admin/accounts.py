"""The accounts of brokers, and what an account may do: of triomq with ``--acl``, and of RocketMQ 4 with its ACL.

Source: wire.md 12 (request 54); PlainAccessConfig.java.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from triomq.client.admin.base import BaseAdmin
from triomq.client.admin.broker_answers import BrokerAnswer, known_brokers
from triomq.client.cluster.instance import ClientInstance
from triomq.client.nursery import in_parallel
from triomq.protocol.acl.accounts import PUB, SUB
from triomq.protocol.acl.plain_acl import read_rules, set_account
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import REMOTE_ERRORS, ClientError, ProtocolError, RequestCodeNotSupportedError
from triomq.protocol.names import retry_topic

#: An account with the fields of plain_acl.yml, without its secret.
AccountFields = Mapping[str, Any]


class BrokerAccounts(NamedTuple):
    """The accounts of a broker.

    Attributes:
        name, broker_id, address: of the broker.
        accounts: in the broker's order; ``None``: it has none, does not answer, or refuses.
        error: the reason for that.
    """

    name: str
    broker_id: int
    address: str
    accounts: tuple[AccountFields, ...] | None = None
    error: str | None = None


class Verdict(NamedTuple):
    """Whether an account may do something.

    Attributes:
        action: in words, as ``send to orders``.
        is_allowed: whether the broker allows it.
        reason: the entry of the file that decides.
    """

    action: str
    is_allowed: bool
    reason: str


class AccountAdmin(BaseAdmin):
    """Reads accounts."""

    async def accounts(self) -> list[BrokerAccounts]:
        """Return the accounts of all brokers, sorted by name and id; only administrators may read them.

        Raises:
            NameServerError: no name server answered, or it knows no broker.
        """
        instance = self._entered()

        async def read(broker: BrokerAnswer) -> BrokerAccounts:
            found = BrokerAccounts(broker.name, broker.broker_id, broker.address)
            try:
                return found._replace(accounts=tuple(await read_accounts(instance, broker.address)))
            except REMOTE_ERRORS as exc:
                return found._replace(error=str(exc))

        return await in_parallel(read, await known_brokers(instance))


async def read_accounts(instance: ClientInstance, address: str) -> list[dict[str, Any]]:
    """Return the accounts of a broker, without their secrets.

    Raises:
        ClientError: it has none, or does not answer.
        BrokerResponseError: it refuses.
        ProtocolError: the answer cannot be read.
    """
    try:
        response = await instance.requests.ask(address, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
    except RequestCodeNotSupportedError:
        raise ClientError(f"the broker at {address} has no accounts: start it with --acl FILE") from None
    try:
        found = orjson.loads(response.body)["plainAccessConfigs"] or []
        return [{name: value for name, value in dict(each).items() if name != "secretKey"} for each in found]
    except (ValueError, KeyError, TypeError) as exc:
        raise ProtocolError(f"the accounts of {address} cannot be read: {type(exc).__name__}") from None


def judge_account(fields: AccountFields, topic: str | None = None, group: str | None = None) -> list[Verdict]:
    """Return the rights of an account with their reasons: administration, and those on a topic and a group.

    Raises:
        ConfigError: the broker's rules for it cannot be read.
    """
    shown = {name: value for name, value in fields.items() if value is not None} | {"secretKey": "not shown"}
    (account,) = read_rules(set_account("", shown)).accounts.values()
    verdicts = [Verdict("administer", account.is_admin, f"admin: {str(account.is_admin).lower()}")]
    asked = []
    if topic is not None:
        asked += [(f"send to {topic}", topic, PUB), (f"read {topic}", topic, SUB)]
    if group is not None:
        asked.append((f"consume as {group}", retry_topic(group), SUB))
    for action, resource, right in asked:
        verdicts.append(Verdict(action, account.may(resource, right), account.reason(resource)))
    if account.white:
        reason = f"whiteRemoteAddress: {fields['whiteRemoteAddress']}"
        verdicts.append(Verdict("everything, from its addresses", is_allowed=True, reason=reason))
    return verdicts
