"""The unit of systemd: our command line reads its command, systemd its options, and it is hardened."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.packaging.dockerfile import ROOT
from triomq.cli.arguments.arguments import parse
from triomq.cli.arguments.options import BrokerOptions
from triomq.cli.commands.broker import make_config

UNIT: Final = ROOT / "deploy" / "systemd" / "triomq.service"
PROGRAM: Final = "/opt/triomq/bin/triomq"
#: The exposure that ``systemd-analyze security`` prints, in tenths; a service without these options has 9.6.
MOST_EXPOSURE: Final = 15


def settings() -> dict[str, str]:
    """The options of the unit; of those given twice the last one."""
    text = UNIT.read_text(encoding="utf-8").replace("\\\n", " ")
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))


def test_unit_serves_network_with_accounts_and_tls() -> None:
    found = settings()
    program, *words = found["ExecStart"].split()
    assert (program, words.pop()) == (PROGRAM, "$TRIOMQ_OPTIONS")
    options = parse(words)
    assert isinstance(options, BrokerOptions)
    given = options.settings
    assert make_config(given).tls is not None
    assert (given.get("insecure"), given["tls"]) == (None, "enforcing")
    assert given["root"] == f"/var/lib/{found['StateDirectory']}"
    written = found["ReadWritePaths"].removeprefix("-")
    assert {str(Path(given[name]).parent) for name in ("acl", "tls_cert", "tls_key")} == {written}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze, not found on this machine")
@pytest.mark.parametrize("words", [["verify"], ["security", "--offline=true", f"--threshold={MOST_EXPOSURE}"]])
def test_systemd_accepts_it_and_finds_it_hardened(tmp_path: Path, words: list[str]) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text(encoding="utf-8").replace(PROGRAM, sys.executable), encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "--no-pager", *words, unit], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-300:]
