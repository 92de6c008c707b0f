"""A browser visits all pages and changes something: of Apache's brokers, with an account, and over HTTPS."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.certificates import Identity
from tests.dashboard.browser import Browser, axe_core, open_browser
from tests.dashboard.cluster import open_dashboard
from tests.interop.kit_driver import ApacheBrokers
from triomq.client import ClientConfig, Credentials, Message
from triomq.client.sync import Admin, LitePullConsumer, Producer
from triomq.dashboard.pages import PAGES
from triomq.protocol.bodies.route import SubscriptionGroupConfig
from triomq.testing import open_broker

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1800)]  # the first run also downloads Apache's brokers

TOPIC: Final = "visited-orders"
GROUP: Final = "visited-billing"
#: Pages of one kind that are visited.
_MOST: Final = 2
_TRIES: Final = 60
_ACCOUNTS: Final = """
accounts:
- {accessKey: operator, secretKey: secret-of-operator, admin: true}
- {accessKey: no-rights, secretKey: secret-of-no-rights}
"""
_OPERATOR: Final = Credentials("operator", "secret-of-operator")


def fill(namesrv: str, credentials: Credentials | None = None) -> None:
    """Make a topic with five messages, of which a group has consumed some."""
    config = ClientConfig(credentials=credentials)
    with Admin(namesrv=namesrv, config=config) as admin:
        admin.create_topic(TOPIC, queues=1)
        admin.create_group(SubscriptionGroupConfig(GROUP))
    with Producer("visited-shop", namesrv=namesrv, config=config) as producer:
        for _ in range(5):
            producer.send(Message(TOPIC, b"order"))
    with LitePullConsumer(GROUP, namesrv=namesrv, config=config, start="earliest") as consumer:
        consumer.subscribe(TOPIC)
        while not consumer.poll():
            pass
        consumer.commit()


@contextmanager
def entered(namesrv: str, *options: str) -> Iterator[Browser]:
    """Open a dashboard and a browser that shows its overview."""
    with open_dashboard(namesrv, *options) as address, open_browser() as browser:
        browser.enter(address)
        yield browser


@contextmanager
def at_apache(version: str, folder: Path) -> Iterator[Browser]:
    """Open the dashboard of an Apache broker."""
    brokers = ApacheBrokers(folder)
    try:
        namesrv = brokers.get(version).namesrv
        fill(namesrv)
        with entered(namesrv) as browser:
            yield browser
    finally:
        brokers.stop_all()


@contextmanager
def with_an_account(folder: Path) -> Iterator[Browser]:
    """Open the dashboard of a broker with accounts; first see the pages without an account, and without rights."""
    (folder / "plain_acl.yml").write_text(_ACCOUNTS)
    with open_broker(acl=folder / "plain_acl.yml") as broker:
        fill(broker.namesrv, _OPERATOR)
        with entered(broker.namesrv) as browser:
            overview = browser.driver.current_url
            assert "Sign in with an account" in text_of(browser)
            sign_in(browser, overview, "no-rights", "secret-of-no-rights")
            for page in ("topics", "brokers", "delayed"):
                browser.show(overview + page)
                assert "This account is no administrator" in text_of(browser), page
            for page in ("groups", f"group?name={GROUP}", f"topic?name={TOPIC}", "accounts"):
                browser.show(overview + page)
                assert browser.script("return !!document.querySelector('.problem')"), page
                assert "Sign in with an account" in text_of(browser), page
                assert not browser.findings(axe_core()), page
            browser.bad()  # forgets the status 403 of these pages
            browser.show(f"{overview}account")
            browser.send_filled_form("account-sign-out")
            sign_in(browser, overview, _OPERATOR.access_key, _OPERATOR.secret_key)
            assert "secret-of-operator" not in text_of(browser)
            yield browser


@contextmanager
def over_https(identity: Identity) -> Iterator[Browser]:
    """Open a dashboard with HTTPS."""
    with open_broker() as broker:
        fill(broker.namesrv)
        with entered(broker.namesrv, "--https-cert", str(identity.cert), "--https-key", str(identity.key)) as browser:
            assert browser.driver.current_url.startswith("https://")
            yield browser


def sign_in(browser: Browser, overview: str, key: str, secret: str) -> None:
    """Sign in with the form for accounts."""
    browser.show(f"{overview}account")
    browser.send_filled_form("account-sign-in", access_key=key, secret_key=secret)
    browser.wait_for("document.querySelector('.who')?.textContent.includes(" + repr(key) + ")")


def text_of(browser: Browser) -> str:
    """Return the text of the page."""
    return str(browser.script("return document.body.textContent"))


def show(browser: Browser, address: str) -> None:
    """Show a page without a problem; brokers on a busy machine may be silent at first."""
    browser.show(address)
    for _ in range(_TRIES):
        status = browser.script("return performance.getEntriesByType('navigation')[0].responseStatus")
        if status not in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT):
            break
        time.sleep(0.5)
        browser.show(address)
    assert not browser.script("return document.querySelector('.problem')?.textContent"), address
    assert not [line for line in browser.bad() if "responded with a status of 50" not in line], address


def visit(browser: Browser) -> set[str]:
    """Follow the links from the overview on; return the pages that were seen, each without a problem."""
    overview = browser.driver.current_url
    found, kinds, seen = [overview], Counter[tuple[str, ...]](), {overview}
    browser.bad()  # forgets the status 503 of a broker that has just started
    for address in found:  # which grows
        show(browser, address)
        for link in browser.links():
            kind = (urlsplit(link).path, *sorted(name for name, _ in parse_qsl(urlsplit(link).query)))
            if link not in seen and kinds[kind] < _MOST:
                kinds[kind] += 1
                found.append(link)
            seen.add(link)
    return {urlsplit(address).path.removeprefix("/") for address in found}


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("4.9.7", marks=pytest.mark.jvm),
        pytest.param("5.5.0", marks=pytest.mark.jvm),
        "account",
        "https",
    ],
)
def test_all_pages_and_changes_work(place: str, tmp_path_factory: pytest.TempPathFactory, identity: Identity) -> None:
    folder = tmp_path_factory.mktemp("visits")
    places = {"account": lambda: with_an_account(folder), "https": lambda: over_https(identity)}
    with places.get(place, lambda: at_apache(place, folder))() as browser:
        overview = browser.driver.current_url
        assert visit(browser) == {page.path for page in PAGES}

        show(browser, f"{overview}send?name={TOPIC}")
        browser.send_filled_form("message-send", body="sent by a visitor")
        browser.wait_for("document.querySelector('.message[role=status]')")
        assert urlsplit(browser.driver.current_url).path == "/message"
        assert browser.script("return document.querySelector('pre.body').textContent") == "sent by a visitor"

        show(browser, f"{overview}group?name={GROUP}")
        browser.send_filled_form("group-reset", to="earliest")
        browser.wait_for("document.querySelector('#typed_name')")
        browser.send_filled_form("group-reset", typed_name=GROUP)
        browser.wait_for("document.querySelector('.message[role=status]')")
        assert f"Group {GROUP} resumes at earliest in topic {TOPIC}" in text_of(browser)
        show(browser, f"{overview}topic?name={TOPIC}")
        assert f"{GROUP}6" in "".join(text_of(browser).split())
