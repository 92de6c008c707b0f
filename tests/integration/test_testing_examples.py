"""The examples of docs/testing.md and the README pass unchanged as test modules, with pytest's defaults."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from tests.integration.test_examples import blocks

LIMIT_S: Final = 150
IMPORTS: Final = (
    "from triomq.client import Message\nfrom triomq.client.sync import Producer\n"  # what the README leaves out
)
#: The libraries of each example beside those that all tests need; tests/spark has the one that needs Spark.
LIBRARIES: Final = {"readme": (), "trio_service": (), "fastapi_app": ("fastapi", "httpx"), "django_app": ("django",)}


def examples() -> dict[str, str]:
    """Return the modules by name."""
    (readme,) = (code for code in blocks("README.md", "python") if "def test_" in code)
    named = {re.match(r"# test_(\w+)\.py\n", code)[1]: code for code in blocks("docs/testing.md", "python")}  # type: ignore[index]
    return {"readme": IMPORTS + readme, **named}


def run_example(name: str, folder: Path, python: str | Path = sys.executable) -> None:
    (folder / f"test_{name}.py").write_text(examples()[name], encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"test_{name}.py"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=folder,
        env={**os.environ, "PYSPARK_PYTHON": str(python)},
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(LIMIT_S + 10)
@pytest.mark.parametrize("name", LIBRARIES)
def test_example_passes(name: str, tmp_path: Path) -> None:
    if missing := [library for library in LIBRARIES[name] if find_spec(library) is None]:
        pytest.skip(f"needs {' and '.join(missing)}")
    run_example(name, tmp_path)


def test_every_example_is_known() -> None:
    assert set(examples()) == {*LIBRARIES, "pyspark_job"}
