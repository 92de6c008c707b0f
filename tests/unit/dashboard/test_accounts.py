"""The accounts of brokers and their rights, against brokers with and without accounts."""

import re

from tests.visitor import open_visitor, text_of
from triomq.client import ClientConfig
from triomq.protocol.wire.signing import Credentials
from triomq.testing import RunningBroker

SECRET = "secret-of-operator"  # of a test
HOSTILE = "<script>alert(1)</script>\u202e\"'&"
ACCOUNTS = f"""
accounts:
  - {{accessKey: operator, secretKey: {SECRET}, admin: true}}
  - accessKey: shop-service
    secretKey: secret-of-shop
    whiteRemoteAddress: 10.0.0.*
    defaultTopicPerm: SUB
    topicPerms: ["orders=PUB|SUB", "logs=PUB"]
    groupPerms: ["billing=SUB"]
  - {{accessKey: "<b>evil&", secretKey: secret-of-evil}}
"""


def signed(key: str, secret: str) -> ClientConfig:
    return ClientConfig(connect=False, credentials=Credentials(key, secret))


async def test_accounts_are_listed_without_secrets(guarded: RunningBroker) -> None:
    async with open_visitor(guarded.namesrv, client=signed("operator", SECRET)) as visitor:
        page = await visitor.get("accounts")
        assert "secret-of" not in page
        assert "&lt;b&gt;evil&amp;" in page
        text = text_of(page)
        assert re.search(r"operator \S+ yes DENY DENY – – –", text), text
        assert re.search(r"shop-service \S+ no SUB DENY orders=PUB\|SUB logs=PUB billing=SUB 10\.0\.0\.\*", text), text
        assert "triomq acl list" in text


async def test_verdicts_have_their_reasons(guarded: RunningBroker) -> None:
    async with open_visitor(guarded.namesrv, client=signed("operator", SECRET)) as visitor:
        text = text_of(await visitor.get("accounts", key="shop-service", topic="logs", group="other"))
        for verdict in (
            "administer no admin: false",
            "send to logs yes topicPerms: logs=PUB",
            "read logs no topicPerms: logs=PUB",
            "consume as other no defaultGroupPerm: DENY",
            "everything, from its addresses yes whiteRemoteAddress: 10.0.0.*",
        ):
            assert verdict in text
        assert "triomq acl check shop-service --topic logs --group other" in text
        page = await visitor.get("accounts", key="<b>evil&", topic=HOSTILE, group=HOSTILE)
        assert "<script>alert" not in page
        assert text_of(page).count(" no default") == 3
        assert "no broker has the account" in await visitor.get("accounts", 404, key=HOSTILE)


async def test_accounts_need_an_administrator(guarded: RunningBroker) -> None:
    for config in (ClientConfig(connect=False), signed("shop-service", "secret-of-shop")):
        async with open_visitor(guarded.namesrv, client=config) as visitor:
            page = await visitor.get("accounts", 403)
            assert "Sign in with an account" in page
            assert "operator" not in page


async def test_broker_without_accounts_is_named(rocketmq: RunningBroker) -> None:
    async with open_visitor(rocketmq.namesrv) as visitor:
        text = text_of(await visitor.get("accounts"))
        assert f"at {rocketmq.address} lists no accounts" in text
        assert "has no accounts: start it with --acl FILE" in text
        assert "No broker lists accounts." in text
