"""What becomes of tests that need Java, Maven or Go where these are not installed."""

import os
import subprocess
import sys
from pathlib import Path

from tests.packaging.dockerfile import ROOT


def run_where_there_is_only_python(folder: Path, *arguments: str, ci: bool) -> tuple[int, str]:
    """Run one test file of each kind with an empty search path; returns exit code and output."""
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "PATH")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "send_sync", *arguments],
        env=environment | {"PATH": str(folder)} | ({"CI": "true"} if ci else {}),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    return done.returncode, done.stdout


def test_they_skip_and_name_the_tool(tmp_path: Path) -> None:
    code, java = run_where_there_is_only_python(tmp_path, "tests/interop/test_java_clients.py", ci=False)
    assert code == 0, java
    assert "needs java and mvn, not found on this machine" in java
    code, go = run_where_there_is_only_python(tmp_path, "tests/interop/test_go_client.py", ci=False)
    assert code == 0, go
    assert "needs go, not found on this machine" in go


def test_they_fail_in_ci(tmp_path: Path) -> None:
    code, output = run_where_there_is_only_python(tmp_path, "tests/interop/test_java_clients.py", ci=True)
    assert code == 1, output
    assert "needs java and mvn" in output
    assert "skipped" not in output.splitlines()[-1]
