"""Pages while servers hang, and pages that fail."""

from pathlib import Path

import pytest
import trio

from tests.visitor import open_visitor, wait_until
from triomq.broker import Address
from triomq.broker.config import NameServerConfig
from triomq.broker.name_server import open_name_server
from triomq.dashboard.pages import PAGES, account
from triomq.dashboard.problems import problem_of
from triomq.protocol import errors as e
from triomq.testing import RunningBroker, open_broker


async def test_hanging_name_server_has_a_page(rocketmq_broker: RunningBroker) -> None:
    async with open_visitor(rocketmq_broker.namesrv, answer_s=1.5) as visitor:
        await visitor.get("topics")
        rocketmq_broker.faults.stall(12)
        with trio.fail_after(10):
            while (answer := await visitor.http.get("/topics")).status_code == 200:  # the list from before
                assert "No name server answers" not in answer.text
        assert (answer.status_code, "No name server answers" in answer.text) == (503, True)


@pytest.mark.parametrize("path", [*(page.path for page in PAGES if page.nav), f"message?id={'0' * 32}"])
async def test_lack_of_brokers_has_a_page(path: str, tmp_path: Path) -> None:
    config = NameServerConfig(listen=Address("127.0.0.1", 0), root=tmp_path, metrics=None)
    async with open_name_server(config) as server, open_visitor(str(server.address)) as visitor:
        assert "A broker is missing" in await visitor.get(path, 503)


async def test_hanging_broker_is_named_and_others_are_shown(rocketmq_broker: RunningBroker) -> None:
    register = (Address.parse(rocketmq_broker.namesrv),)
    with open_broker(broker_name="broker-b", register=register) as other:
        async with open_visitor(rocketmq_broker.namesrv, answer_s=1.5) as visitor:
            sampler = visitor.application.own.sampler
            await wait_until(lambda: len(sampler.brokers) == 2)
            other.faults.stall(15)
            await wait_until(lambda: bool(sampler.silent))
            page = await visitor.get("")
            assert "does not answer: " in page
            assert rocketmq_broker.address in page
            assert f"{other.address}</bdi> does not answer" in await visitor.get("topics")


async def test_defect_has_a_page_and_a_log_line(
    rocketmq: RunningBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_view: object) -> None:
        raise ValueError("<b>secret detail")

    page = account.PAGES[0]._replace(path="", handler=fail)  # type: ignore[arg-type]
    monkeypatch.setattr("triomq.dashboard.app.PAGES", (page,))
    async with open_visitor(rocketmq.namesrv) as visitor:
        text = await visitor.get("", 500)
        assert "defect of the dashboard" in text
        assert "secret detail" not in text
        assert "page failed" in caplog.text


async def test_slow_page_ends_in_time(rocketmq: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(_view: object) -> None:
        await trio.sleep_forever()

    page = account.PAGES[0]._replace(path="", handler=hang)  # type: ignore[arg-type]
    monkeypatch.setattr("triomq.dashboard.app.PAGES", (page,))
    async with open_visitor(rocketmq.namesrv, answer_s=1.5) as visitor:
        assert "was not there after 2 s" in await visitor.get("", 504)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (e.TopicNotExistError(17, "no", "a:1"), 404),
        (e.NoRouteError("no"), 404),
        (e.NoPermissionError(16, "no", "a:1"), 403),
        (e.BrokerSystemError(1, "AclException: no", "a:1"), 403),
        (e.BrokerSystemError(1, "disk", "a:1"), 502),
        (e.NameServerError("no"), 503),
        (e.NoBrokerError("no"), 503),
        (e.RequestTimeoutError("no"), 504),
        (e.ConnectError("no"), 504),
        (e.ConfigError("no"), 400),
        (e.RequestCodeNotSupportedError(3, "no", "a:1"), 501),
        (ExceptionGroup("", [e.NoRouteError("no")]), 404),
        (ExceptionGroup("", [e.NoRouteError("no"), ValueError()]), None),
        (ValueError("no"), None),
    ],
)
def test_errors_have_pages(error: Exception, status: int | None) -> None:
    problem = problem_of(error, [])
    assert (None if problem is None else problem.status) == status
