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
    accounts = Accounts(path)
    assert keys(accounts) == []
    accounts.load()
    return accounts


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "there is no such file"),
        (b"accounts: [1]", "line 1: "),
        (b"\xff", "is not UTF-8"),
        ("/", "there is no such file"),
    ],
)
def test_bad_file_prevents_start(path: Path, content: bytes | str | None, reason: str) -> None:
    path.unlink()
    expected = path
    if content == "/":
        path.mkdir()
        expected = path / "plain_acl.yml"
    elif isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{expected}: {reason}"):
        Accounts(path).load()


async def test_changed_file_applies_completely_or_not(path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
async def test_missing_accounts_deny_everything(path: Path, is_missing: bool) -> None:
    accounts = loaded(path)
    write(path, None if is_missing else "")
    await accounts.look()
    assert keys(accounts) == []
    write(path, ONE)
    await accounts.look()
    assert keys(accounts) == ["account-1"]


async def test_replaced_file_with_equal_stat_is_noticed(path: Path) -> None:
    accounts = loaded(path)
    replace_at_the_same_time(path, ONE.replace("1", "9"))
    await accounts.look()
    assert keys(accounts) == ["account-9"]


async def test_complete_change_takes_effect_within_five_seconds(
    path: Path, autojump_clock: MockClock, instant_threads: None
) -> None:
    """A file that still changes between two looks is not read."""
    accounts = loaded(path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(accounts.run)
        await trio.sleep(1.5)
        write(path, "accounts: [")
        await trio.sleep(2)
        write(path, TWO)
        await trio.sleep(5)
        nursery.cancel_scope.cancel()
    assert (keys(accounts), accounts.failed_readings) == (["account-1", "account-2"], 0)


# --- several files ------------------------------------------------------------------------------------------

FURTHER = ONE.replace("-1", "-2")


@pytest.fixture
def further(path: Path) -> Path:
    """A file below the folder ``acl``, beside some that do not count."""
    further = path.parent / "acl" / "teams" / "shop.yaml"
    further.parent.mkdir(parents=True)
    further.write_text(FURTHER)
    for name in ("tools.yml", "acl/shop.yml.bak"):
        (path.parent / name).write_text("accessKey: somebody")
    return further


async def test_folder_with_appearing_and_disappearing_files(path: Path, further: Path) -> None:
    accounts = loaded(path.parent)
    assert keys(accounts) == ["account-1", "account-2"]
    assert list(accounts.versions) == ["plain_acl.yml", "acl/teams/shop.yaml"]
    write(path, None)
    await accounts.look()
    assert keys(accounts) == ["account-2"]
    write(further, None)
    write(further.with_name("other.yml"), ONE + "globalWhiteRemoteAddresses: [10.0.0.1]")
    await accounts.look()
    assert keys(accounts) == ["account-1"]
    assert accounts.rules.white.has("10.0.0.1")


async def test_duplicate_account_error_names_both_files(path: Path, further: Path) -> None:
    accounts = loaded(path.parent)
    write(further, FURTHER + "- {accessKey: account-1, secretKey: secret-9}")
    twice = "acl/teams/shop.yaml: line 3: accessKey account-1 is given twice, also in plain_acl.yml line 2"
    with pytest.raises(ConfigError, match=f"{path.parent}/{twice}"):
        Accounts(path.parent).load()
    await accounts.look()
    assert (keys(accounts), accounts.failed_readings) == (["account-1", "account-2"], 1)


async def test_change_goes_to_the_accounts_file(path: Path, further: Path) -> None:
    accounts = loaded(path.parent)
    places = [accounts.file_of(key) for key in ("account-1", "account-2", "account-3")]
    assert places == [path, further, path]
    names = ("", "acl/teams/shop.yaml", str(further), "plain_acl.yml", "tools.yml", "/etc/passwd")
    assert [accounts.file_named(name) for name in names] == [path, further, further, path, None, None]
    accounts.rewrite(further, lambda text: text.replace("account-2", "account-4"))
    await accounts.look()
    assert keys(accounts) == ["account-1", "account-4"]


def test_change_that_conflicts_with_other_files(path: Path, further: Path) -> None:
    accounts = loaded(path.parent)
    with pytest.raises(ConfigError, match=r"^acl/teams/shop.yaml: line 2: accessKey account-1 is given twice"):
        accounts.rewrite(further, lambda _: ONE)
    assert further.read_text() == FURTHER
