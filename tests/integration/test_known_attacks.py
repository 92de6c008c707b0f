"""Attacks on RocketMQ that are known by a number: refused by name, nothing is run, written or changed."""

from pathlib import Path
from typing import Final

import pytest

from tests.integration.broker_wire import broker_port, connected, namesrv_port, running, vip_port
from triomq.protocol.codes import RequestCode, ResponseCode

#: What the public exploits send; TARGET is a file that they would leave behind.
CVE_2023_33246: Final = (
    "filterServerNums=1\nrocketmqHome=-c $@|sh . echo touch TARGET;\n",
    "filterServerNums=1\nnamesrvAddr=127.0.0.1:9876\nrocketmqHome=-c $@|sh . echo `touch TARGET`;\n",
    "rocketmqHome=TARGET\nkvConfigPath=TARGET\nbrokerConfigPath=TARGET\naclEnable=false\n",
    "transactionCheckMax=16\nrocketmqHome=$(touch TARGET)\n",
    "filterServerNums=1",
    "storePathRootDir=TARGET\nstorePathCommitLog=TARGET",
)
CVE_2023_37582: Final = (
    "configStorePath=TARGET\nproductEnvName=test/path\\n* * * * * touch TARGET\n",
    "configStorePathName=TARGET\nrocketmqHome=TARGET\n",
    "kvConfigPath=TARGET\norderMessageEnable=true\n",
    "configStorePath=TARGET\nbindAddress=$(touch TARGET)\n",
)


def files(root: Path) -> list[str]:
    return [path.name for path in root.iterdir()]


async def attack(ports: tuple[int, ...], change: int, ask: int, payload: str, root: Path) -> None:
    """Send a payload; it is refused by the name of its setting, and changes nothing."""
    for port in ports:
        async with connected(port) as wire:
            before = await wire.ask(ask)
            response = await wire.ask(change, body=payload.replace("TARGET", str(root / "target")).encode())
            assert response.code == ResponseCode.NO_PERMISSION
            assert (await wire.ask(ask)).body == before.body
            assert files(root) == ["store"]
            assert any(line.partition("=")[0] in str(response.remark) for line in payload.splitlines())


@pytest.mark.parametrize("payload", CVE_2023_33246)
async def test_cve_2023_33246(tmp_path: Path, payload: str) -> None:
    codes = RequestCode.UPDATE_BROKER_CONFIG, RequestCode.GET_BROKER_CONFIG
    async with running(tmp_path / "store") as broker:
        await attack((broker_port(broker), vip_port(broker)), *codes, payload, tmp_path)


@pytest.mark.parametrize("payload", CVE_2023_37582)
async def test_cve_2023_37582(tmp_path: Path, payload: str) -> None:
    codes = RequestCode.UPDATE_NAMESRV_CONFIG, RequestCode.GET_NAMESRV_CONFIG
    async with running(tmp_path / "store") as broker:
        await attack((namesrv_port(broker), broker_port(broker)), *codes, payload, tmp_path)
