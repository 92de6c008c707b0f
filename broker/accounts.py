"""The accounts of a broker, read from one or more files, and read again when one of them changes.

Rules: the content of all files takes effect together or not at all; an empty or missing file admits no one.

Source: behaviour.md A.19; PlainPermissionManager.java.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from triomq.broker.watched_file import WatchedFiles, read_file
from triomq.protocol.acl.accounts import AclRules
from triomq.protocol.acl.addresses import union
from triomq.protocol.acl.plain_acl import read_rules
from triomq.protocol.bodies.route import DataVersion
from triomq.protocol.errors import ConfigError
from triomq.protocol.event_log import EventLog
from triomq.storage.files.file_system import FileSystem

LOGGER: Final = logging.getLogger("triomq.broker.accounts")

_DEFAULT_FILE: Final = "plain_acl.yml"
_FURTHER_FILES: Final = "acl"
_SUFFIXES: Final = (".yml", ".yaml")


class Accounts(WatchedFiles[AclRules]):
    """The files of accounts and their content; new accounts go to the first file.

    Attributes:
        rules: the accounts in force.
    """

    def __init__(self, path: Path) -> None:
        """Admit no one until :meth:`load`.

        Args:
            path: a file; or a folder such as RocketMQ's ``conf``: its ``plain_acl.yml``, and each ``*.yml`` and
                ``*.yaml`` below its folder ``acl``.
        """
        self._folder = path / _FURTHER_FILES if path.is_dir() else None
        log = EventLog(LOGGER, "accounts not read again, the old ones stay in force: %s")
        super().__init__(path if self._folder is None else path / _DEFAULT_FILE, log)
        self.rules = AclRules()

    @property
    def versions(self) -> dict[str, DataVersion]:
        """The version of each file by name, the first file first; each reading changes all of them."""
        return {
            self._name(path): DataVersion(timestamp=mark[1] // 1_000_000, counter=self.readings)
            for path, mark in self._marks.items()
        }

    def read_texts(self) -> list[str]:
        """Return the texts of the files, "" for a missing one.  May run in a worker thread.

        Raises:
            ConfigError: one cannot be read.
        """
        return [read_file(path) or "" for path in self._files()]

    def file_of(self, key: str) -> Path:
        """Return the file that has an account, the first one for a new account.  May run in a worker thread.

        Raises:
            ConfigError: a file cannot be read or is wrong.
        """
        files = ((path, read_rules(read_file(path) or "")) for path in self._files())
        return next((path for path, rules in files if key in rules.accounts), self.path)

    def file_named(self, name: str) -> Path | None:
        """Return a file by its name or full path, the first one for "".  May run in a worker thread."""
        return next((path for path in self._files() if name in ("", self._name(path), str(path))), None)

    def rewrite(self, path: Path, change: Callable[[str], str]) -> None:
        """Replace the text of a file by the result of ``change``; for a worker thread, one at a time.

        It is written beside and renamed, so there is the old file or the new one, whatever happens.

        Raises:
            ConfigError: a file is wrong or cannot be written; nothing has changed.
        """
        text = change(read_file(path) or "")
        self._read_rules(path, text)
        path = path.resolve()
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

    def _use(self, content: AclRules) -> None:
        self.rules = content
        if not self.rules.accounts and not self.rules.white:
            LOGGER.warning("no accounts, so every request is refused file=%s", self.path)

    # --- files ------------------------------------------------------------------------------------------

    def _files(self) -> list[Path]:
        """Return all files; the first one may be missing."""
        further = [] if self._folder is None else self._folder.rglob("*")
        return [self.path, *sorted(path for path in further if path.suffix in _SUFFIXES and path.is_file())]

    def _name(self, path: Path) -> str:
        return path.relative_to(self.path.parent).as_posix()

    def _read(self) -> AclRules:
        try:
            return self._read_rules()
        except ConfigError as exc:
            raise ConfigError(f"{self.path.parent}{os.sep}{exc}") from None

    def _read_rules(self, changed: Path | None = None, changed_text: str = "") -> AclRules:
        """Return the accounts in all files; a missing one has none.

        ``changed`` is a file that is to get another text.

        Raises:
            ConfigError: one cannot be read, or is wrong; the text begins with its name.
        """
        found: list[AclRules] = []
        places: dict[str, str] = {}
        for path in self._files():
            name = self._name(path)
            try:
                text = changed_text if path == changed else read_file(path)
                found.append(read_rules(text or "", places, name if self._folder else ""))
            except ConfigError as exc:
                raise ConfigError(f"{name}: {exc}") from None
        accounts = {key: account for rules in found for key, account in rules.accounts.items()}
        return AclRules(union(rules.white for rules in found), accounts)
