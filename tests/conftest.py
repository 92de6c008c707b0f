"""Settings for all tests.

A test whose marker names a missing tool is skipped; with ``CI=true`` it fails.  Hypothesis has no deadline, because
machines differ in speed, and uses the same examples in each CI run.  SIGINT and SIGHUP have Python's usual handlers.
"""

import logging
import os
import shutil
import signal
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

from tests import core
from tests.certificates import Authority, Identity
from tests.processes import SLOW_DISK

settings.register_profile("triomq", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("triomq")

# Background jobs and many CI runners ignore SIGINT, nohup ignores SIGHUP, and every child process inherits that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

TOOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "jvm": ("java", "mvn"),
    "go": ("go",),
    "nginx": ("nginx",),
    "spark": ("pyspark",),
    "browser": ("chromium", "chromedriver", "selenium"),
}
#: Folders whose test modules cannot be imported without these.
FOLDERS: Final[Mapping[Path, tuple[str, ...]]] = {
    Path(__file__).parent / "unit" / "spark": ("pyspark",),
    Path(__file__).parent / "spark": ("pyspark", "java"),
    Path(__file__).parent / "dashboard": ("selenium",),
}
_PACKAGES: Final = frozenset(("pyspark", "selenium"))


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """The logger ``triomq``, which commands and demos configure; restored after the test."""
    logger = logging.getLogger("triomq")
    before = (logger.level, logger.handlers[:], logger.propagate)
    yield logger
    for handler in logger.handlers:
        if handler not in before[1]:
            handler.close()
    logger.level, logger.handlers[:], logger.propagate = before
    logger.setLevel(before[0])


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A CA that signs the certificates of a test run."""
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="session")
def identity(authority: Authority) -> Identity:
    """The certificate of a broker on this machine."""
    return authority.issue("broker")


def missing_tools(item: pytest.Item) -> list[str]:
    """Return the tools that the markers of ``item`` require and this machine lacks."""
    return _missing(tool for marker, tools in TOOLS.items() if item.get_closest_marker(marker) for tool in tools)


def _missing(tools: Iterable[str]) -> list[str]:
    return [tool for tool in tools if (find_spec(tool) if tool in _PACKAGES else shutil.which(tool)) is None]


class UnavailableModule(pytest.Module):
    """A test module that cannot be imported here: skipped, or failed when ``CI=true``."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        reason = f"{self.path.name} {lacking(_missing(FOLDERS[self.path.parent]))}"
        if in_ci():
            pytest.fail(f"{reason} (CI=true: no tool may be missing)", pytrace=False)
        pytest.skip(reason, allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Do not import modules that need a missing package or program."""
    if _missing(FOLDERS.get(module_path.parent, ())):
        module: pytest.Module = UnavailableModule.from_parent(parent, path=module_path)
        return module
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests whose tool is missing; the report names file, line and tool.  Mark the core."""
    for item in items:
        if why := core.reason(item.nodeid):
            item.add_marker(pytest.mark.core(why))
        if (missing := missing_tools(item)) and not in_ci():
            item.add_marker(pytest.mark.skip(reason=lacking(missing)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """In CI fail tests whose tool is missing, before any fixture starts a process."""
    if (missing := missing_tools(item)) and in_ci():
        pytest.fail(f"{lacking(missing)} (CI=true: no tool may be missing)", pytrace=False)


@pytest.fixture(params=[0, 20, pytest.param(200, marks=pytest.mark.slow)], ids=lambda delay_ms: f"{delay_ms} ms")
def disk_delay(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow down each sync of the brokers that the test starts."""
    monkeypatch.setenv(SLOW_DISK, f"{request.param / 1000}")


def in_ci() -> bool:
    """Return whether this is a CI run."""
    return os.environ.get("CI") == "true"


def lacking(missing: list[str]) -> str:
    """Return the reason for skipping or failing."""
    return f"needs {' and '.join(missing)}, not found on this machine"
