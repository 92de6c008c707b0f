"""Brokers, their copies and settings, and name servers, against real brokers."""

import re

import pytest

from tests.visitor import open_visitor, text_of, until_shown, wait_until
from triomq.broker import Address
from triomq.client import Admin
from triomq.testing import RunningBroker, open_broker


async def test_brokers_and_name_servers_are_shown(rocketmq_broker: RunningBroker) -> None:
    async with open_visitor(f"{rocketmq_broker.namesrv};127.0.0.1:1") as visitor:
        page = await visitor.get("brokers")
        text = text_of(page)
        assert re.search(rf" {re.escape(rocketmq_broker.address)} triomq \S+ async-master – ", text), text
        assert f"{rocketmq_broker.namesrv} 1 answers" in text
        assert re.search(r"127\.0\.0\.1:1 – [^–]*cannot connect", text), text
        assert "triomq replica status" in text
        assert "answers" in text_of(await visitor.fragment("brokers"))


async def test_broker_has_settings_without_secrets(
    rocketmq_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def settings(_admin: Admin, _address: str) -> dict[str, str]:
        secrets = dict.fromkeys(("initAuthenticationUser", "innerClientAuthenticationCredentials"), "hidden-value")
        return {"brokerName": "<b>\u202e", "flushDiskType": "ASYNC_FLUSH", **secrets}

    async with open_visitor(rocketmq_broker.namesrv) as visitor:
        name = next(iter(visitor.application.own.sampler.brokers))[0]
        page = await visitor.get("broker", name=name)
        assert "flushDiskType ASYNC_FLUSH" in text_of(page)
        assert "promote" not in page
        found = text_of(await visitor.get("broker", name=name, q="FLUSHDISK"))
        assert "flushDiskType" in found
        assert "brokerName" not in found
        for query in ({"name": "nothing"}, {"name": name, "id": "7"}, {"name": name, "id": "<b>"}):
            assert "no name server knows a broker" in await visitor.get("broker", 404, **query)
        monkeypatch.setattr(Admin, "broker_settings", settings)
        visitor.application.own.sampler.forget()
        page = await visitor.get("broker", name=name)
        assert "hidden-value" not in page
        assert text_of(page).count("not shown") == 2
        assert "&lt;b&gt;" in page


async def test_slave_has_lag_and_the_command_of_promotion() -> None:
    listen = Address.parse("127.0.0.1:0")
    with open_broker(broker_name="pair", ha_listen=listen) as master:
        register = (Address.parse(master.namesrv),)
        with open_broker(broker_name="pair", role="slave", broker_id=1, register=register) as slave:
            async with open_visitor(master.namesrv) as visitor:
                await wait_until(lambda: len(visitor.application.own.sampler.brokers) == 2)
                text = text_of(await until_shown(visitor, "brokers", "slaves connected: 1"))
                assert "in touch with 127.0.0.1:" in text_of(await until_shown(visitor, "brokers", "in touch with"))
                assert re.search(rf"1 {re.escape(slave.address)} triomq \S+ slave 0 B ", text), text
                page = await visitor.get("broker", name="pair", id="1")
                assert f"triomq replica promote --broker {slave.address}" in page
                assert '<form method="post"' not in page
