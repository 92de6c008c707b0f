import itertools
import logging
import os
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from triomq.broker.accounts import Accounts
from triomq.protocol.errors import ConfigError

ONE = "accounts:\n- {accessKey: account-1, secretKey: secret-1}\n"
TWO = ONE + "- {accessKey: account-2, secretKey: secret-2}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "plain_acl.yml"
    path.write_text(ONE)
    return path


def write(path: Path, text: str | None) -> None:
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text)


def replace_at_the_same_time(path: Path, text: str) -> None:
    found = path.stat()
    other = path.with_name("other")
    other.write_text(text)
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.rename(path)


def keys(accounts: Accounts) -> list[str]:
    return list(accounts.rules.accounts)


def loaded(path: Path) -> Accounts:
    accounts = Accounts(path, like_apache=True)
    assert keys(accounts) == []
    accounts.load()
    return accounts


def test_accounts_are_read_at_the_start(path: Path) -> None:
    accounts = loaded(path)
    assert keys(accounts) == ["account-1"]
    assert accounts.rules.like_apache


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "there is no such file"),
        (b"accounts: [1]", "line 1: "),
        (b"\xff", "is not UTF-8"),
        ("/", "cannot be read"),
    ],
)
def test_a_bad_file_is_an_error_at_the_start(path: Path, content: bytes | str | None, reason: str) -> None:
    path.unlink()
    if content == "/":
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{path}: {reason}"):
        Accounts(path).load()


async def test_a_changed_file_counts_as_a_whole_or_not_at_all(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "triomq.broker.accounts")
    accounts = loaded(path)
    before = accounts.rules
    await accounts.look()
    assert accounts.rules is before
    write(path, TWO)
    await accounts.look()
    assert keys(accounts) == ["account-1", "account-2"]
    write(path, TWO + "- {accessKey: account-3, secretKey: secret-3, topicPerms: [a]}\n")
    for _ in range(3):
        await accounts.look()
    assert keys(accounts) == ["account-1", "account-2"]
    assert (accounts.readings, accounts.failed_readings) == (2, 3)
    write(path, ONE)
    await accounts.look()
    assert keys(accounts) == ["account-1"]
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert errors == [
        f"accounts not read again, the old ones stay in force: {path}: line 4: topicPerms: 'a' is not NAME=RIGHT"
    ]
    assert "secret" not in caplog.text


@pytest.mark.parametrize("is_missing", [True, False])
async def test_without_accounts_nobody_may_do_anything(path: Path, is_missing: bool) -> None:
    accounts = loaded(path)
    write(path, None if is_missing else "")
    await accounts.look()
    assert keys(accounts) == []
    write(path, ONE)
    await accounts.look()
    assert keys(accounts) == ["account-1"]


async def test_a_replaced_file_of_the_same_size_and_time_is_noticed(path: Path) -> None:
    accounts = loaded(path)
    replace_at_the_same_time(path, ONE.replace("1", "9"))
    await accounts.look()
    assert keys(accounts) == ["account-9"]


async def test_the_file_is_looked_at_more_often_than_every_5_s(
    path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[float] = []

    async def look(_accounts: Accounts) -> None:
        times.append(trio.current_time())
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(Accounts, "look", look)
    with trio.move_on_after(11):
        await loaded(path).run()
    assert len(times) >= 3
    assert all(later - earlier <= 4 for earlier, later in itertools.pairwise([times[0], *times]))
