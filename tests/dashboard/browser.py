"""A Chromium without a window that looks at the dashboard; it records refused loads, errors, and the hosts called."""

import fcntl
import json
import os
import shutil
import subprocess
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from selenium.common.exceptions import WebDriverException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.wait import WebDriverWait

from tests.conftest import lacking

#: How long a page may take on a busy machine.
LIMIT_S: Final = 40
#: Width and height of a desktop and of a phone, in CSS pixels.
WIDE: Final = (1280, 900)
NARROW: Final = (400, 800)
_FETCH_LIMIT_S: Final = 300

# Runs before any script of a page.
_WATCH: Final = """
    window.seen = {violations: [], calls: [], shifts: [], settled: 0};
    for (const name of ["alert", "confirm", "prompt"]) window[name] = (text) => { seen.calls.push(`${name} ${text}`); };
    addEventListener("error", (event) => seen.calls.push(`error ${event.message}`));
    addEventListener("securitypolicyviolation",
      (event) => seen.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
    document.addEventListener("htmx:afterSettle", () => { seen.settled += 1; });
    new PerformanceObserver((list) => {
      for (const {value, sources} of list.getEntries())
        seen.shifts.push(`${value} ${sources.map(({node}) => node && (node.outerHTML || node.data)).join()}`);
    }).observe({type: "layout-shift", buffered: true});
"""
_OPTIONS: Final = (
    "--headless=new",
    "--no-sandbox",  # of tests that run as root
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    f"--window-size={WIDE[0]},{WIDE[1]}",
)


class Browser:
    """Chromium, with the questions that the tests ask of a page."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver
        driver.set_page_load_timeout(LIMIT_S)
        driver.set_script_timeout(LIMIT_S)
        self._command("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)

    def _command(self, name: str, **values: Any) -> None:
        self.driver.execute_cdp_cmd(name, values)

    def show(self, address: str) -> None:
        """Open a page and wait for its scripts."""
        self.driver.get(address)
        self.wait_for("document.readyState === 'complete'")

    def wait_until_shown(self, address: str) -> None:
        """Open a page of a server that is about to start."""
        with suppress(WebDriverException):
            self.show(address)
        while not self.script("return location.href.startsWith('http') && document.title"):
            with suppress(WebDriverException):
                self.show(address)

    def script(self, text: str, *values: Any) -> Any:
        """Return the value of a script."""
        return self.driver.execute_script(text, *values)  # type: ignore[no-untyped-call, unused-ignore]

    def wait_for(self, condition: str) -> None:
        """Wait until an expression of JavaScript is true."""
        WebDriverWait(self.driver, LIMIT_S, 0.05).until(lambda _: self.script(f"return !!({condition})"), condition)

    def enter(self, link: str) -> None:
        """Open the address of the ready line, which leads to the overview."""
        self.driver.get(link)
        self.wait_for("document.querySelector('header nav')")

    def links(self) -> list[str]:
        """Return the addresses of all links, without those within the page."""
        found: list[str] = self.script("return [...document.querySelectorAll('a[href]')].map((link) => link.href)")
        return [link for link in found if not urlsplit(link).fragment]

    def changes(self) -> set[str]:
        """Return where the forms that change something lead to."""
        script = "return [...document.querySelectorAll('form[method=post]')].map((form) => form.action)"
        return {urlsplit(action).path.rpartition("/")[2] for action in self.script(script)}

    def send_filled_form(self, action: str, **values: str) -> None:
        """Send a form with these values, or something in each field that a visitor must fill or may choose."""
        self.script(
            """
            const values = arguments[1];
            const [form] = document.querySelectorAll(`form[method=post][action="${arguments[0]}"]`);
            for (const field of form.elements) {
              if (field.type === "checkbox") field.checked = true;
              else if (field.type === "datetime-local") field.value = "2026-01-31T12:00";
              else if (field.name in values) field.value = values[field.name];
              else if (field.required && !field.value) field.value = "something";
            }
            form.requestSubmit();
            """,
            action,
            values,
        )
        self.wait_for("document.readyState === 'complete'")

    def bad(self) -> list[str]:
        """Return loads that the policy forbade, calls of ``alert`` and errors of scripts."""
        found: list[str] = self.script("return [...seen.violations, ...seen.calls]")
        return found + [line["message"] for line in self.driver.get_log("browser") if line["level"] == "SEVERE"]  # type: ignore[no-untyped-call, unused-ignore]

    def requested(self) -> set[str]:
        """Return the hosts that were asked since the last call."""
        hosts = set()
        for line in self.driver.get_log("performance"):  # type: ignore[no-untyped-call, unused-ignore]
            event = json.loads(line["message"])["message"]
            if event["method"] == "Network.requestWillBeSent":
                hosts.add(urlsplit(event["params"]["request"]["url"]).netloc)
        return hosts

    def resize(self, size: tuple[int, int]) -> None:
        """Give the page another size."""
        width, height = size
        self._command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def prefer(self, scheme: str) -> None:
        """Have the viewer prefer light or dark, without transitions."""
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self._command("Emulation.setEmulatedMedia", features=features)

    def hide_scrollbars(self) -> None:
        """Hide them, as phones do."""
        self._command("Emulation.setScrollbarsHidden", hidden=True)

    def picture(self, path: Path, *, is_whole: bool = True) -> None:
        """Save a picture of the whole page as PNG, or of the part that the window shows."""
        found = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": is_whole})
        path.write_bytes(b64decode(found["data"]))

    def live_in(self, zone: str) -> None:
        """Have the viewer live in a time zone; "": that of the machine."""
        self._command("Emulation.setTimezoneOverride", timezoneId=zone)

    def excess_width(self) -> int:
        """Return by how many pixels the page is wider than its window."""
        excess: int = self.script(
            "const page = document.documentElement; return page.scrollWidth - page.clientWidth",
        )
        return excess

    def findings(self, axe: str, rules: Sequence[str] = ()) -> list[str]:
        """Return the findings of axe-core, with these rules or with all."""
        self.script(f"if (!window.axe) {{ {axe} }}")
        found: list[str] = self.driver.execute_async_script(  # type: ignore[no-untyped-call, unused-ignore]
            """
            const [rules, done] = arguments;
            axe.run(document, {resultTypes: ["violations"], ...(rules.length ? {runOnly: rules} : {})}).then(
              (result) => done(result.violations.flatMap(
                (finding) => finding.nodes.map((node) => `${finding.id}: ${node.html} ${node.failureSummary}`))),
              (error) => done([String(error)]));
            """,
            list(rules),
        )
        return found


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start Chromium with an empty profile; it accepts certificates of authorities that it does not know."""
    options = ChromeOptions()
    options.accept_insecure_certs = True
    options.binary_location = shutil.which("chromium") or ""
    for option in _OPTIONS:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = Chrome(options, Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


def axe_core() -> str:
    """Return the source of axe-core, brought once by npm; skips where that cannot be done."""
    source = Path(__file__).parent / "axe"
    version = json.loads((source / "package.json").read_text())["dependencies"]["axe-core"]
    folder = source.parents[2] / ".cache" / f"axe-core-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "node_modules" / "axe-core" / "axe.min.js"
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not script.exists():
            _install(source, folder)
    return script.read_text(encoding="utf-8")


def _install(source: Path, folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(lacking(["npm"]))
    for name in ("package.json", "package-lock.json"):
        shutil.copy(source / name, folder)
    done = subprocess.run(
        [npm, "ci", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund"],
        env={**os.environ, "CI": "true"},
        capture_output=True,
        text=True,
        timeout=_FETCH_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"npm could not bring axe-core: {done.stderr.strip()[-500:]}")
