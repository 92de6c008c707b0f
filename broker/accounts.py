"""The accounts of a broker: read from a file, and again when the file changed.

Rules: new accounts count as a whole or not at all; an empty or missing file means nobody, never everybody.
"""

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Final

import trio

from triomq.protocol.acl.accounts import AclRules
from triomq.protocol.acl.plain_acl import read_rules
from triomq.protocol.errors import ConfigError
from triomq.protocol.failure_log import FailureLog

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
        mark, text = _read(self.path)
        if text is None:
            raise ConfigError(f"{self.path}: there is no such file of accounts")
        self.take(text, mark)

    def take(self, text: str, mark: _Mark | None = None) -> None:
        """Let the accounts of a text count from now on.

        Raises:
            ConfigError: it is wrong; nothing changed.
        """
        try:
            rules = read_rules(text)
        except ConfigError as exc:
            raise ConfigError(f"{self.path}: {exc}") from None
        self._use(rules, mark or _mark(self.path))

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
            rules, mark = found
            self._use(rules, mark)
            self._log.worked()
            LOGGER.info("accounts read again file=%s accounts=%d", self.path, len(rules.accounts))

    def _use(self, rules: AclRules, mark: _Mark) -> None:
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
        ConfigError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            return (found.st_ino, found.st_mtime_ns, found.st_size), file.read().decode()
    except FileNotFoundError:
        return _MISSING, None
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from None
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: is not UTF-8 at byte {exc.start}") from None


def _read_changed(path: Path, mark: _Mark) -> tuple[AclRules, _Mark] | None:
    """Return the rules if the file is another one now; a missing file has none.

    Raises:
        ConfigError: it is wrong.
    """
    if _mark(path) == mark:
        return None
    mark, text = _read(path)
    try:
        return read_rules(text or ""), mark
    except ConfigError as exc:
        raise ConfigError(f"{path}: {exc}") from None
