"""A log file that rotates by size, and that other programs may rename."""

import os
from contextlib import suppress
from io import TextIOWrapper
from logging import LogRecord
from logging.handlers import RotatingFileHandler, WatchedFileHandler
from pathlib import Path
from typing import Final

_FILE_MODE: Final = 0o600


class LogFile(RotatingFileHandler, WatchedFileHandler):
    """Begins a new file above a size; only its owner can read it.

    A file that cannot be renamed keeps growing, as does a link, such as ``/dev/stdout``.
    """

    dev = ino = -1  # of the open file: unknown until the first record

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=lambda path, how: os.open(path, how, _FILE_MODE))

    def shouldRollover(self, record: LogRecord) -> int:  # noqa: N802  # logging's name
        """Return whether the record belongs in a new file; called for each record."""
        self.reopenIfNeeded()
        return not Path(self.baseFilename).is_symlink() and super().shouldRollover(record)

    def doRollover(self) -> None:  # noqa: N802  # logging's name
        """Begin a new file."""
        with suppress(OSError):
            super().doRollover()
