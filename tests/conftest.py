"""Markers that name a tool: a test skips where the tool is missing, and fails instead when ``CI=true``.

Also the profile of Hypothesis: no deadline, since machines differ, and the same examples in each run of CI.
"""

import os
import shutil
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

settings.register_profile("triomq", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("triomq")

TOOLS: Final[Mapping[str, tuple[str, ...]]] = {"jvm": ("java", "mvn"), "go": ("go",), "spark": ("pyspark",)}
#: Folders whose test modules cannot be imported without these.
FOLDERS: Final[Mapping[Path, tuple[str, ...]]] = {
    Path(__file__).parent / "unit" / "spark": ("pyspark",),
    Path(__file__).parent / "spark": ("pyspark", "java"),
}
_PACKAGES: Final = frozenset(("pyspark",))


def missing_tools(item: pytest.Item) -> list[str]:
    """The programs that the markers of ``item`` ask for and the search path does not have."""
    return _missing(tool for marker, tools in TOOLS.items() if item.get_closest_marker(marker) for tool in tools)


def _missing(tools: Iterable[str]) -> list[str]:
    return [tool for tool in tools if (find_spec(tool) if tool in _PACKAGES else shutil.which(tool)) is None]


class UnavailableModule(pytest.Module):
    """A test module that cannot be imported here: skipped by name, an error when ``CI=true``."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        reason = f"{self.path.name} {lacking(_missing(FOLDERS[self.path.parent]))}"
        if in_ci():
            pytest.fail(f"{reason} (CI=true: nothing may be skipped for a missing tool)", pytrace=False)
        pytest.skip(reason, allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Do not import what needs a package or program that is missing."""
    if _missing(FOLDERS.get(module_path.parent, ())):
        module: pytest.Module = UnavailableModule.from_parent(parent, path=module_path)
        return module
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests whose tool is missing, so that the report names file, line and tool."""
    for item in items:
        if (missing := missing_tools(item)) and not in_ci():
            item.add_marker(pytest.mark.skip(reason=lacking(missing)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail such tests in CI, before any fixture starts a process."""
    if (missing := missing_tools(item)) and in_ci():
        pytest.fail(f"{lacking(missing)} (CI=true: nothing may be skipped for a missing tool)", pytrace=False)


def in_ci() -> bool:
    """Whether this is the run that counts."""
    return os.environ.get("CI") == "true"


def lacking(missing: list[str]) -> str:
    """The reason in words."""
    return f"needs {' and '.join(missing)}, not found on this machine"
