"""The accounts of a broker: read from a file, and again when the file changed.

Rules: new accounts count as a whole or not at all; an empty or missing file means nobody, never everybody.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from triomq.broker.watched_file import WatchedFile
from triomq.protocol.acl.accounts import AclRules
from triomq.protocol.acl.plain_acl import read_rules
from triomq.protocol.bodies.route import DataVersion
from triomq.protocol.errors import ConfigError
from triomq.protocol.failure_log import FailureLog
from triomq.storage.files.file_system import FileSystem

LOGGER: Final = logging.getLogger("triomq.broker.accounts")


class Accounts(WatchedFile[AclRules]):
    """The file of accounts and what it says.

    Attributes:
        rules: what counts now.
    """

    def __init__(self, path: Path, *, like_apache: bool = False) -> None:
        """Nobody may do anything until :meth:`load`; ``like_apache``: check only what RocketMQ checks."""
        super().__init__(path, FailureLog(LOGGER, "accounts not read again, the old ones stay in force: %s"))
        self.rules = AclRules()
        self._like_apache = like_apache

    @property
    def version(self) -> DataVersion:
        """Changes with each reading; the time is that of the file's last change."""
        return DataVersion(timestamp=self._mark[1] // 1_000_000, counter=self.readings)

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

    def _parse(self, text: str | None) -> AclRules:
        return read_rules(text or "")

    def _use(self, content: AclRules) -> None:
        self.rules = replace(content, like_apache=self._like_apache)
        if not self.rules.accounts and not self.rules.white:
            LOGGER.warning("no accounts, so every request is refused file=%s", self.path)
