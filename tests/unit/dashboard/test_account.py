"""Brokers with accounts: the visitor's account, or the dashboard's own."""

import httpx
import pytest
import trio

from tests.visitor import BASE, Visitor, open_visitor, until_shown
from triomq.client import ClientConfig
from triomq.dashboard import watched
from triomq.protocol.wire.signing import Credentials
from triomq.testing import RunningBroker

SECRET = "operator-secret"  # of a test
OPERATOR = Credentials("operator", SECRET)
ACCOUNTS = f"""
accounts:
  - {{accessKey: operator, secretKey: {SECRET}, admin: true}}
  - {{accessKey: shop-service, secretKey: shop-secret}}
"""


async def sign_in(visitor: Visitor, key: str, secret: str) -> httpx.Response:
    return await visitor.post("account-sign-in", access_key=key, secret_key=secret)


async def test_visitor_signs_in_with_an_account(guarded: RunningBroker) -> None:
    async with open_visitor(guarded.namesrv, read_only=True) as visitor:
        for path in ("", "topics"):
            page = await visitor.get(path, 403)
            assert "No accessKey is configured" in page
            assert 'href="account"' in page
        wrong = await sign_in(visitor, "operator", "wrong-secret")
        assert (wrong.status_code, "Check signature failed" in wrong.text) == (403, True)
        assert (await sign_in(visitor, "operator", SECRET)).headers["location"] == "./"
        page = await until_shown(visitor, "", "No problem found")
        pages = [page, await visitor.get("topics"), await visitor.get("account")]
        assert all("operator" in page and SECRET not in page for page in pages)
        assert (await visitor.post("account-sign-out")).status_code == 303
        await visitor.get("", 403)


async def test_account_without_right_is_explained(guarded: RunningBroker) -> None:
    async with open_visitor(guarded.namesrv) as visitor:
        assert (await sign_in(visitor, "shop-service", "shop-secret")).status_code == 303
        page = await visitor.get("")
        assert "needs an administrator" in page or "could not be examined" in page
        for path in ("topics", "delayed"):
            await until_shown(visitor, path, "This account is no administrator")
        assert "The delayed messages cannot be read" in await visitor.get("delayed")


async def test_own_account_signs_for_all(guarded: RunningBroker) -> None:
    async with open_visitor(guarded.namesrv, client=ClientConfig(connect=False, credentials=OPERATOR)) as visitor:
        await visitor.get("")
        assert "own account" in await visitor.get("account")


async def test_accounts_are_bounded_and_end(guarded: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "MAX_ACCOUNTS", 1)
    monkeypatch.setattr(watched, "_CHECK_S", 0.05)
    async with open_visitor(guarded.namesrv) as visitor:
        application = visitor.application
        assert (await sign_in(visitor, "operator", SECRET)).status_code == 303
        async with httpx.AsyncClient(transport=httpx.ASGITransport(application.asgi), base_url=BASE) as http:
            http.cookies.set("triomq_dashboard", application.gate.open_session())
            other = Visitor(application, http)
            assert "more are not possible" in (await sign_in(other, "operator", SECRET)).text
            monkeypatch.setattr(watched, "IDLE_S", 0.0)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(application.accounts.run)
                await until_shown(visitor, "account", "signed out")
                nursery.cancel_scope.cancel()
            assert (await sign_in(other, "operator", SECRET)).status_code == 303
