"""A file of settings that an operator edits: read at the start, and again within 5 s after it changed.

Rules: what it says counts as a whole or not at all; a wrong file changes nothing, and the log says so once.
"""

import logging
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final, Generic, TypeAlias, TypeVar

import trio

from triomq.protocol.errors import ConfigError
from triomq.protocol.event_log import EventLog

LOGGER: Final = logging.getLogger("triomq.broker.watched_file")

Content = TypeVar("Content")
Mark: TypeAlias = tuple[int, int, int]
"""What changes with a file."""
Marks: TypeAlias = dict[Path, Mark]

_INTERVAL_S: Final = 2.0
MISSING: Final = (0, 0, 0)


class WatchedFiles(ABC, Generic[Content]):
    """Files, and what they say together.

    Attributes:
        path: the file, or the first one.
        readings, failed_readings: how often they were read since the start, and how often one was wrong.
    """

    def __init__(self, path: Path, log: EventLog) -> None:
        """``log`` tells that a changed file is wrong."""
        self.path: Final = path
        self.readings = 0
        self.failed_readings = 0
        self._marks: Marks = {}
        self._log = log

    @abstractmethod
    def _files(self) -> list[Path]:
        """Return what is read."""

    @abstractmethod
    def _read(self) -> tuple[Marks, Content]:
        """Return the marks of the files and what they say.  May run in a worker thread.

        Raises:
            ConfigError: one cannot be read, or is wrong; the text names file and line.
        """

    @abstractmethod
    def _use(self, content: Content) -> None:
        """Let it count from now on."""

    def load(self) -> None:
        """Read the file at the start.

        Raises:
            ConfigError: it does not exist, cannot be read, or is wrong; the text names file and line.
        """
        marks, content = self._read()
        if set(marks.values()) == {MISSING}:
            raise ConfigError(f"{self.path}: there is no such file")
        self._take(marks, content)

    async def run(self) -> None:
        """Look every 2 s whether the file changed; until cancelled."""
        while True:
            await trio.sleep(_INTERVAL_S)
            await self.look()

    async def look(self) -> None:
        """Read the file in a worker thread if it changed."""
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

    def _take(self, marks: Marks, content: Content) -> None:
        self.readings += 1
        self._marks = marks
        self._use(content)

    def _read_changed(self) -> tuple[Marks, Content] | None:
        return None if {path: _mark(path) for path in self._files()} == self._marks else self._read()


class WatchedFile(WatchedFiles[Content]):
    """One file."""

    @abstractmethod
    def _parse(self, text: str | None) -> Content:
        """Return what the file says; ``None``: there is none.  May run in a worker thread.

        Raises:
            ConfigError: it is wrong; the text names the line.
        """

    def _files(self) -> list[Path]:
        return [self.path]

    def _read(self) -> tuple[Marks, Content]:
        try:
            mark, text = read_file(self.path)
            return {self.path: mark}, self._parse(text)
        except ConfigError as exc:
            raise ConfigError(f"{self.path}: {exc}") from None


def _mark(path: Path) -> Mark:
    """Return what changes with the file; ``MISSING`` if there is none."""
    try:
        found = path.stat()
    except OSError:
        return MISSING
    return found.st_ino, found.st_mtime_ns, found.st_size


def read_file(path: Path) -> tuple[Mark, str | None]:
    """Return the file's mark and text, ``None`` if it is missing.

    Raises:
        ConfigError: it cannot be read; the text does not name it.
    """
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            return (found.st_ino, found.st_mtime_ns, found.st_size), file.read().decode()
    except FileNotFoundError:
        return MISSING, None
    except OSError as exc:
        raise ConfigError(f"cannot be read: {exc.strerror}") from None
    except UnicodeDecodeError as exc:
        raise ConfigError(f"is not UTF-8 at byte {exc.start}") from None
