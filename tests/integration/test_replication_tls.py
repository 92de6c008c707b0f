"""TLS between a master and its slaves."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.integration.broker_wire import broker_port, connected, running, wait_for
from tests.integration.test_registration import broker_at
from triomq.broker.addresses import Address
from triomq.broker.config import BrokerConfig, TlsConfig
from triomq.broker.server import Broker
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import ConfigError
from triomq.storage.config import StoreConfig

BODY = bytes(50_000)


async def test_slaves_need_certificates_of_the_ca(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ours, others = Authority(tmp_path / "ca"), Authority(tmp_path / "other")

    def tls_of(authority: Authority, name: str) -> TlsConfig:
        identity = authority.issue(name)
        return TlsConfig(cert=identity.cert, key=identity.key, client_ca=ours.ca, client_auth="require")

    def end_of(broker: Broker) -> int:
        return broker.store.commit_log.max_offset

    async with (
        running(tmp_path / "m", ha_listen=Address("127.0.0.1", 0), ha_tls=True, tls=tls_of(ours, "master")) as master,
        connected(broker_port(master)) as wire,
    ):
        namesrv = master.addresses["default"][1]

        async def grow() -> None:
            for _ in range(40):
                assert (await wire.put(body=BODY)).code == ResponseCode.SUCCESS

        await grow()
        async with (
            broker_at(
                tmp_path / "s1", namesrv, role="slave", broker_id=1, ha_tls=True, tls=tls_of(ours, "slave")
            ) as slave,
            broker_at(
                tmp_path / "s2", namesrv, role="slave", broker_id=2, ha_tls=True, tls=tls_of(others, "slave")
            ) as stranger,
            broker_at(tmp_path / "s3", namesrv, role="slave", broker_id=3) as plain,
        ):
            for _ in range(2):
                await wait_for(lambda: end_of(slave) == end_of(master))
                await grow()
            await wait_for(lambda: end_of(slave) == end_of(master))
            assert slave.store.commit_log.files.files[0].view == master.store.commit_log.files.files[0].view
            await wait_for(lambda: "reason=unable to get local issuer certificate" in caplog.text)
            await wait_for(lambda: "connection without TLS refused" in caplog.text)
            assert end_of(stranger) == end_of(plain) == 0


def test_open_port_needs_slaves_with_certificates(tmp_path: Path) -> None:
    identity = Authority(tmp_path / "ca").issue("master")
    store, open_to_all = StoreConfig(root=tmp_path), Address("0.0.0.0", 10912)
    plain = TlsConfig(cert=identity.cert, key=identity.key)
    asking = replace(plain, client_ca=identity.cert, client_auth="require")
    BrokerConfig(store=store, ha_listen=open_to_all, ha_tls=True, tls=asking)
    with pytest.raises(ConfigError, match="with --ha-tls and --tls-client-ca"):
        BrokerConfig(store=store, ha_listen=open_to_all, ha_tls=True, tls=plain)
    with pytest.raises(ConfigError, match="--ha-tls needs a certificate"):
        BrokerConfig(store=store, ha_listen=open_to_all, ha_tls=True)
