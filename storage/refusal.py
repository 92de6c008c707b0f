"""Why a store refuses messages: it is closed, the disk has failed, or the disk is full."""

import logging
from typing import Final

from triomq.protocol.errors import StoreClosedError, StoreError, StoreFullError
from triomq.protocol.event_log import EventLog
from triomq.storage.config import StoreConfig
from triomq.storage.files.file_system import DiskSpace

LOGGER: Final = logging.getLogger("triomq.storage.message_store")


class Refusal:
    """Whether one store accepts messages, and the reason if not.

    Attributes:
        is_open: whether the store is open.
        failure: the first failed flush or write-back; messages that were not flushed before may be lost.
        is_active: whether messages are refused now.
    """

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self._disk: DiskSpace | None = None
        self._has_refused = False  # a message, since the disk was measured last
        self._log = EventLog(
            LOGGER, "store refuses messages root=%s error=%s", recovery="store accepts messages again root=%s"
        )
        self.failure: StoreError | None = None
        self.is_open = False
        self.is_active = True

    def opened(self) -> None:
        """Accept messages from now on."""
        self.is_open = True
        self.failure = self._disk = None
        self._has_refused = False
        self._log.ended(self._config.root)
        self._update()

    def closed(self) -> None:
        """Refuse everything from now on."""
        self.is_open = False
        self._update()

    def failed(self, error: StoreError) -> None:
        """Refuse messages until the store is opened again; may be called in the thread of a flush."""
        self.failure = error
        self._update()
        self.log(error)

    def measured(self, disk: DiskSpace) -> None:
        """Refuse messages while the disk is fuller than ``disk_full_ratio``."""
        self._disk = disk
        self._update()
        if (error := self.error()) is not None:
            self.log(error)
        elif not self._has_refused:
            self._log.ended(self._config.root)
        self._has_refused = False

    def log(self, error: StoreError) -> None:
        """Log the reason, until :meth:`measured` finds that no message was refused since its last call."""
        self._has_refused = True
        self._log.occurred(self._config.root, error)

    def error(self) -> StoreError | None:
        """Return a new error that says why messages are refused; ``None`` if they are not."""
        root, disk = self._config.root, self._disk
        if not self.is_open:
            return self.closed_error()
        if self.failure is not None:
            return StoreError(f"the store takes no messages since its disk failed: {self.failure}")
        if disk is not None and disk.used_percent > self._config.disk_full_ratio:
            return StoreFullError(
                f"the disk of {root} is {disk.used_percent} % full, {disk.available_bytes} bytes are free: "
                f"no messages above {self._config.disk_full_ratio} % (disk_full_ratio)"
            )
        return None

    def closed_error(self) -> StoreError:
        """Return a new error for a store that is not open."""
        return StoreClosedError(f"the store {self._config.root} is not open")

    def _update(self) -> None:
        self.is_active = self.error() is not None
