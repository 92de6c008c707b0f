"""A browser visits all pages that links lead to: their rules, their looks, and their use by keyboard."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import pytest
from selenium.webdriver import ActionChains, Keys

from tests.dashboard.browser import NARROW, WIDE, Browser, axe_core, open_browser
from tests.dashboard.cluster import ATTACK, HOSTILE, fill, open_dashboard
from triomq.dashboard.pages import CHANGES, PAGES
from triomq.testing import RunningBroker

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

#: Pages of one kind, such as those of topics, that are visited.
_MOST: Final = 2


@pytest.fixture(scope="module")
def cluster(rocketmq_session: RunningBroker) -> RunningBroker:
    """A broker with data for each page."""
    fill(rocketmq_session)
    return rocketmq_session


@pytest.fixture(scope="module")
def browser(cluster: RunningBroker) -> Iterator[Browser]:
    """A browser that is signed in."""
    with open_dashboard(cluster.namesrv) as address, open_browser() as browser:
        browser.enter(address)
        yield browser


@pytest.fixture(scope="module")
def addresses(browser: Browser) -> list[str]:
    """The addresses that links lead to, from the overview on, two of each kind."""
    overview = browser.driver.current_url
    found, kinds = [overview], Counter[tuple[str, ...]]()
    seen = {overview}
    for address in found:  # which grows
        browser.show(address)
        assert browser.script("return document.querySelectorAll('h1').length") == 1, address
        assert page_of(address) in {page.path for page in PAGES}, address
        for link in browser.links():
            kind = (page_of(link), *sorted(name for name, _ in parse_qsl(urlsplit(link).query)))
            if link not in seen and kinds[kind] < _MOST:
                kinds[kind] += 1
                found.append(link)
            seen.add(link)
    return found


def page_of(address: str) -> str:
    """Return the word of a page."""
    return urlsplit(address).path.removeprefix("/")


def one_of_each(addresses: list[str]) -> list[str]:
    """Return one address of each page."""
    return list({page_of(address): address for address in addresses}.values())


def test_links_reach_all_pages_and_break_no_rule(browser: Browser, addresses: list[str]) -> None:
    assert {page.path for page in PAGES} == {page_of(address) for address in addresses}
    hosts = {urlsplit(browser.driver.current_url).netloc}
    browser.requested()
    browser.bad()  # forgets the status 503 of a first page before the broker answered
    bad = {}
    for address in addresses:
        browser.show(address)
        if found := browser.bad():
            bad[address] = found
        requested = {host for host in browser.requested() if host}
        assert requested == hosts, address
    assert not bad


def test_hostile_text_is_shown_and_does_nothing(browser: Browser, addresses: list[str]) -> None:
    overview = addresses[0]
    browser.show(f"{overview}messages?name={ATTACK}")
    links = [link for link in browser.links() if page_of(link) == "message"]
    assert len(links) == len(HOSTILE) + 1
    shown = set()
    for link in links:
        browser.show(link)
        for form in [link for link in browser.links() if "as=" in link]:
            browser.show(form)
            assert not browser.bad(), form
            elements = "main :is(script, img, svg, iframe, link, [style], [onload], [hx-trigger])"
            strange = f"[...document.querySelectorAll('{elements}')].filter((one) => one.id !== 'live')"
            assert browser.script(f"return {strange}.length") == 0, form
            shown.add(browser.script("return document.querySelector('pre.body').textContent"))
    assert {text for text in HOSTILE if "\x07" not in text} <= shown
    for query in (f"topics?q={HOSTILE[0]}", f"topic?name={HOSTILE[1]}", f"messages?name={ATTACK}&key={HOSTILE[2]}"):
        browser.driver.get(overview + query)
        answers = [line for line in browser.bad() if "the server responded with a status of 4" not in line]
        assert not answers, query


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Browser, addresses: list[str], scheme: str) -> None:
    axe = axe_core()
    browser.prefer(scheme)
    found = {}
    for address in one_of_each(addresses):
        browser.show(address)
        if findings := browser.findings(axe, () if scheme == "light" else ("color-contrast",)):
            found[address] = findings
    browser.prefer("light")
    assert not found, json.dumps(found, indent=1)


def test_no_page_is_wider_than_a_phone(browser: Browser, addresses: list[str]) -> None:
    browser.resize(NARROW)
    wide = {}
    for address in addresses:
        browser.show(address)
        if excess := browser.excess_width():
            wide[address] = excess
    browser.resize(WIDE)
    assert not wide


def test_keyboard_reaches_each_control_and_shows_where(browser: Browser, addresses: list[str]) -> None:
    for address in one_of_each(addresses):
        browser.show(address)
        browser.script(
            """
            document.activeElement.blur();
            seen.reached = new Set(); seen.hidden = [];
            addEventListener("focusin", ({target}) => {
              seen.reached.add(target);
              const style = getComputedStyle(target);
              if (style.outlineStyle === "none" && target.id !== "main") seen.hidden.push(target.outerHTML);
            });
            """
        )
        count = browser.script("return document.querySelectorAll('a, button, input, select, textarea').length")
        ActionChains(browser.driver).send_keys(Keys.TAB * (count + 20)).perform()
        missed = browser.script(
            """
            return [...document.querySelectorAll("a, button, input:not([type=hidden], [type=radio]), select, textarea")]
              .filter((element) => element.isConnected && !element.closest("#live") && !seen.reached.has(element))
              .map((element) => element.outerHTML)
            """
        )
        assert not missed, address
        assert not browser.script("return seen.hidden"), address
        browser.script("document.activeElement.blur(); getSelection().removeAllRanges()")


def test_first_tab_skips_to_the_content(browser: Browser, addresses: list[str]) -> None:
    browser.show(addresses[0])
    ActionChains(browser.driver).send_keys(Keys.TAB).perform()
    assert browser.script("return document.activeElement.className") == "skip"
    assert browser.script("return document.activeElement.getBoundingClientRect().left") == 0
    ActionChains(browser.driver).send_keys(Keys.ENTER).perform()
    browser.wait_for("document.activeElement.id === 'main'")


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_nothing_moves_when_a_part_is_replaced(browser: Browser, addresses: list[str], size: tuple[int, int]) -> None:
    polled = {page.path for page in PAGES if page.polls_s}
    pages = [address for address in one_of_each(addresses) if page_of(address) in polled]
    assert {page_of(address) for address in pages} == polled
    browser.resize(size)
    for address in pages:
        browser.show(address)
        browser.wait_for("seen.settled > 0")
        browser.script("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert browser.script("return seen.shifts") == [], address
        assert not browser.bad(), address
    browser.resize(WIDE)


def test_changes_show_their_plan_and_change_nothing_yet(browser: Browser, addresses: list[str]) -> None:
    axe = axe_core()
    asking = {change.path for change in CHANGES if change.asks_for}
    planned = set[str]()
    for address in addresses:
        browser.show(address)
        for path in sorted(browser.changes() & asking - planned):
            browser.show(address)
            browser.send_filled_form(path)
            if page_of(browser.driver.current_url) == path and browser.script("return !!window.typed_name"):
                planned.add(path)
                assert not browser.bad(), path
                assert not browser.findings(axe), path
                browser.resize(NARROW)
                assert browser.excess_width() == 0, path
                browser.resize(WIDE)
    assert {"group-reset", "redrive"} <= planned


def test_time_of_reset_is_in_viewers_zone(browser: Browser, addresses: list[str]) -> None:
    browser.live_in("America/Caracas")  # four hours behind UTC, all year
    browser.show(f"{addresses[0]}group?name=tour-lagging")
    assert browser.script("return document.querySelector('[for=reset-time]').textContent") == "Time, America/Caracas"
    browser.send_filled_form("group-reset")
    assert browser.script("return document.querySelector('input[name=time]').value") == "2026-01-31T16:00:00.000Z"
    assert "--to 2026-01-31T16:00:00+00:00" in browser.script("return document.querySelector('pre').textContent")
    assert "12:00:00" in browser.script("return document.querySelector('main time').textContent")
    browser.live_in("")


def test_read_only_dashboard_has_no_change_form(cluster: RunningBroker, browser: Browser, addresses: list[str]) -> None:
    safe = {change.path for change in CHANGES if change.is_safe}
    with open_dashboard(cluster.namesrv, "--read-only") as address, open_browser() as other:
        other.enter(address)
        base = other.driver.current_url
        for each in one_of_each(addresses):
            other.show(base + each.removeprefix(addresses[0]))
            assert other.changes() <= safe, each
