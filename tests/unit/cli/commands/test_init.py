"""``triomq init``: a folder as a whole or not at all, for its owner only."""

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from triomq.cli import main
from triomq.client.config import load_credentials
from triomq.protocol.acl.accounts import PUB, SUB
from triomq.protocol.acl.plain_acl import read_rules

ACCOUNT_FILES = ["broker/plain_acl.yml", "client/administrator.account", "client/application.account"]
TLS_FILES = ["broker/server.key", "broker/server.pem", "ca.key", "client/ca.pem"]


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("options", "expected"),
    [(["--acl"], ACCOUNT_FILES), (["--tls"], TLS_FILES), (["--acl", "--tls"], sorted(ACCOUNT_FILES + TLS_FILES))],
)
def test_only_the_owner_can_read_the_files(tmp_path: Path, options: list[str], expected: list[str]) -> None:
    before = os.umask(0)
    try:
        assert main(["init", *options, str(tmp_path / "conf")]) == 0
    finally:
        os.umask(before)
    assert files(tmp_path / "conf") == expected
    for path in tmp_path.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert list(tmp_path.iterdir()) == [tmp_path / "conf"]


def test_accounts_have_different_secrets_that_stay_hidden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secrets = set()
    for name in ("first", "second"):
        assert main(["init", "--acl", "--json", str(tmp_path / name)]) == 0
        rules = read_rules((tmp_path / name / "broker" / "plain_acl.yml").read_text())
        for key, account in rules.accounts.items():
            found = load_credentials(f"file:{tmp_path / name / 'client' / key}.account")
            assert (found.access_key, found.secret_key) == (key, account.secret_key)
            secrets.add(account.secret_key)
        application = rules.accounts["application"]
        assert (application.is_admin, application.topic_right, application.group_right) == (False, PUB | SUB, SUB)
        assert rules.accounts["administrator"].is_admin
    assert len(secrets) == 4
    assert all(len(secret) >= 40 for secret in secrets)
    shown = capsys.readouterr()
    assert not any(secret in shown.out + shown.err for secret in secrets)
    told = json.loads(shown.out.splitlines()[-1])
    assert sorted(told["files"]) == [str(tmp_path / "second" / file) for file in ACCOUNT_FILES]


@pytest.mark.parametrize("kind", ["file", "link", "folder with a file"])
def test_nothing_is_ever_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    target, old = tmp_path / "conf", tmp_path / "conf"
    if kind == "folder with a file":
        target.mkdir()
        old = target / "old"
    elif kind == "link":
        old = tmp_path / "elsewhere"
        target.symlink_to(old)
    old.write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    assert main(["init", "--acl", str(target)]) == 2
    assert "choose a folder that does not exist" in capsys.readouterr().err
    assert old.read_text() == "mine"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "give --acl for accounts, --tls for certificates, or both"),
        (["--tls", "--host", "mq.example.org:9876"], "write a host name or an IP address, without a port"),
        (["--tls", "--host", "a, DNS:evil.example.org"], "write a host name or an IP address"),
        (["--tls", "--host", "a\n[ca]"], "write a host name or an IP address"),
        (["--tls", "--host", ""], "write a host name or an IP address"),
        (["--tls", "--host", "x" * 64], "write a host name or an IP address"),
    ],
)
def test_a_wrong_option_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    assert main(["init", *words, str(tmp_path / "conf")]) == 2
    assert complaint in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_installed", [False, True])
def test_without_a_working_openssl_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_installed: bool
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: "/bin/false" if is_installed else None)
    assert main(["init", "--acl", "--tls", str(tmp_path / "conf")]) == 2
    assert "openssl" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
