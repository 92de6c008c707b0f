"""The accounts of a broker: read from a file, and again when the file changed.

Rules: new accounts count as a whole or not at all; an empty or missing file means nobody, never everybody.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import trio

from triomq.protocol.acl.accounts import AclRules
from triomq.protocol.acl.plain_acl import read_rules
from triomq.protocol.bodies.route import DataVersion
from triomq.protocol.errors import ConfigError
from triomq.protocol.failure_log import FailureLog
from triomq.storage.files.file_system import FileSystem

LOGGER: Final = logging.getLogger("triomq.broker.accounts")

_INTERVAL_S: Final = 2.0
_Mark = tuple[int, int, int]
_MISSING: Final = (0, 0, 0)


class Accounts:
    """The file of accounts and what it says.

    Attributes:
        path: the file.
        rules: what counts now.
        readings, failed_readings: how often the file was read since the start, and how often it was wrong.
    """

    def __init__(self, path: Path, *, like_apache: bool = False) -> None:
        """Nobody may do anything until :meth:`load`; ``like_apache``: check only what RocketMQ checks."""
        self.path: Final = path
        self.rules = AclRules()
        self.readings = 0
        self.failed_readings = 0
        self._like_apache = like_apache
        self._mark: _Mark = _MISSING
        self._log = FailureLog(LOGGER, "accounts not read again, the old ones stay in force: %s")

    def load(self) -> None:
        """Read the file at the start.

        Raises:
            ConfigError: it does not exist, cannot be read, or is wrong; the text names file and line.
        """
        mark, rules = _read_rules(self.path)
        if mark == _MISSING:
            raise ConfigError(f"{self.path}: there is no such file of accounts")
        self._use(mark, rules)

    @property
    def version(self) -> DataVersion:
        """Changes with each reading; the time is that of the file's last change."""
        return DataVersion(timestamp=self._mark[1] // 1_000_000, counter=self.readings)

    def read_text(self) -> str:
        """Return what the file holds now, "" for a missing one.  May run in a worker thread.

        Raises:
            ConfigError: it cannot be read.
        """
        return _read(self.path)[1] or ""

    def rewrite(self, change: Callable[[str], str]) -> None:
        """Replace the file by what ``change`` makes of its text; for a worker thread, one at a time.

        It is written beside and renamed, so there is the old file or the new one, whatever happens.

        Raises:
            ConfigError: the file is wrong or cannot be written; it is unchanged.
        """
        text = change(self.read_text())
        path = self.path.resolve()
        scratch = path.with_name(f"{path.name}.tmp")
        try:
            mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
            scratch.unlink(missing_ok=True)
            with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(path)
            FileSystem().sync_directory(path.parent)
        except OSError as exc:
            raise ConfigError(f"the file of accounts cannot be written: {exc.strerror}") from None

    async def run(self) -> None:
        """Look every 2 s whether the file changed; until cancelled."""
        while True:
            await trio.sleep(_INTERVAL_S)
            await self.look()

    async def look(self) -> None:
        """Read the file in a worker thread if it changed."""
        try:
            found = await trio.to_thread.run_sync(_read_changed, self.path, self._mark)
        except ConfigError as exc:
            self.failed_readings += 1
            self._log.failed(exc, cause=str(exc))
            return
        if found is not None:
            self._use(*found)
            self._log.worked()
            LOGGER.info("accounts read again file=%s accounts=%d", self.path, len(self.rules.accounts))

    def _use(self, mark: _Mark, rules: AclRules) -> None:
        self.readings += 1
        self._mark = mark
        self.rules = replace(rules, like_apache=self._like_apache)
        if not rules.accounts and not rules.white:
            LOGGER.warning("no accounts, so every request is refused file=%s", self.path)


def _mark(path: Path) -> _Mark:
    """Return what changes with the file; ``_MISSING`` if there is none."""
    try:
        found = path.stat()
    except OSError:
        return _MISSING
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read(path: Path) -> tuple[_Mark, str | None]:
    """Return the file's mark and text, ``None`` if it is missing.

    Raises:
        ConfigError: it cannot be read; the text does not name it.
    """
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            return (found.st_ino, found.st_mtime_ns, found.st_size), file.read().decode()
    except FileNotFoundError:
        return _MISSING, None
    except OSError as exc:
        raise ConfigError(f"cannot be read: {exc.strerror}") from None
    except UnicodeDecodeError as exc:
        raise ConfigError(f"is not UTF-8 at byte {exc.start}") from None


def _read_rules(path: Path) -> tuple[_Mark, AclRules]:
    """Return the file's mark and what it says; a missing file has no accounts.

    Raises:
        ConfigError: it cannot be read, or is wrong.
    """
    try:
        mark, text = _read(path)
        return mark, read_rules(text or "")
    except ConfigError as exc:
        raise ConfigError(f"{path}: {exc}") from None


def _read_changed(path: Path, mark: _Mark) -> tuple[_Mark, AclRules] | None:
    """Return what the file says if it is another one now.

    Raises:
        ConfigError: it is wrong.
    """
    return None if _mark(path) == mark else _read_rules(path)
