"""Files that an operator edits, read at the start and within 5 s after a change: accounts, quotas, certificates.

Files take effect together or not at all: after an error nothing changes, and the log has the reason.  A change is read
when two looks at the files find the same, so that several files are not read while they are being replaced.
"""

import logging
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Final, Generic, TypeAlias, TypeVar

import trio

from triomq.protocol.errors import ConfigError
from triomq.protocol.event_log import EventLog

LOGGER: Final = logging.getLogger("triomq.broker.watched_file")

Content = TypeVar("Content")
Mark: TypeAlias = tuple[int, int, int]
"""Inode, time of the last change in ns, and size of a file."""

_INTERVAL_S: Final = 2.0
_MISSING: Final = (0, 0, 0)


class WatchedFiles(ABC, Generic[Content]):
    """Files and their common content.

    Attributes:
        path: the file, or the first one.
        readings, failed_readings: how many times they were read since the start, and how many times one was wrong.
    """

    def __init__(self, path: Path, log: EventLog) -> None:
        """``log`` reports changed files that are wrong."""
        self.path: Final = path
        self.readings = 0
        self.failed_readings = 0
        self._marks: dict[Path, Mark] = {}  # of the files as they were read
        self._log = log

    def _files(self) -> list[Path]:
        """Return the files; they may be missing."""
        return [self.path]

    @abstractmethod
    def _read(self) -> Content:
        """Return the content of the files.  May run in a worker thread.

        Raises:
            ConfigError: one cannot be read, or is wrong; the text names file and line.
        """

    @abstractmethod
    def _use(self, content: Content) -> None:
        """Apply the content from now on."""

    def load(self) -> None:
        """Read the files at the start.

        Raises:
            ConfigError: none exists, or one cannot be read or is wrong; the text names file and line.
        """
        marks, content = self._current_marks(), self._read()
        if set(marks.values()) == {_MISSING}:
            raise ConfigError(f"{self.path}: there is no such file")
        self._take(marks, content)

    async def run(self) -> None:
        """Read changed files, until cancelled."""
        before = self._marks
        while True:
            await trio.sleep(_INTERVAL_S)
            found = await trio.to_thread.run_sync(self._current_marks)
            if found == before != self._marks:
                await self.look()
            before = found

    async def look(self) -> None:
        """Read the files in a worker thread if one has changed."""
        try:
            found = await trio.to_thread.run_sync(self._read_changed)
        except ConfigError as exc:
            self.failed_readings += 1
            self._log.occurred(exc, cause=str(exc))
            return
        if found is not None:
            self._take(*found)
            self._log.ended()
            LOGGER.info("file read again path=%s", self.path)

    def _take(self, marks: dict[Path, Mark], content: Content) -> None:
        self.readings += 1
        self._marks = marks
        self._use(content)

    def _read_changed(self) -> tuple[dict[Path, Mark], Content] | None:
        marks = self._current_marks()  # first: a change during the reading is noticed by the next look
        return None if marks == self._marks else (marks, self._read())

    def _current_marks(self) -> dict[Path, Mark]:
        marks = dict.fromkeys(self._files(), _MISSING)
        for path in marks:
            with suppress(OSError):
                found = path.stat()
                marks[path] = found.st_ino, found.st_mtime_ns, found.st_size
        return marks


def read_file(path: Path) -> str | None:
    """Return the text of a file; ``None`` if it is missing.

    Raises:
        ConfigError: it cannot be read; the text does not name it.
    """
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise ConfigError(f"cannot be read: {exc.strerror}") from None
    except UnicodeDecodeError as exc:
        raise ConfigError(f"is not UTF-8 at byte {exc.start}") from None
