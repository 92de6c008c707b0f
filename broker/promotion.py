"""The promotion of a slave to the master, remembered in its store: ``config/promotion.json``.

Problem: two brokers may take themselves for the master of one name: the promoted one, and the former one when it is
back.  Both ask name servers for the other; the one that was promoted last stays.  So a promotion has a time, which is
later than that of any promotion that this store has heard of, also where the clock is behind.

Rejected: to keep the promotion in memory only.  A supervisor starts the process again with its old command line, as a
slave, and the name would have no master.
"""

from typing import Any, Final

from triomq.broker.config import BrokerConfig
from triomq.storage.files.file_system import FileSystem
from triomq.storage.files.json_table import JsonTable


class Promotion:
    """The last promotion of a store's broker, if that is still in force.

    Attributes:
        promoted_ms: when, in ms since 1970; 0: never, or another broker was promoted later.
        former_master: the address of the master before; "": unknown.
    """

    def __init__(self, config: BrokerConfig, file_system: FileSystem | None) -> None:
        """Name the file; nothing is read."""
        self._config = config
        self._file_system = file_system
        self.promoted_ms = 0
        self.former_master = ""
        self._role = ""
        self._known_ms = 0  # the latest promotion of any broker of this name
        self._table: Final = JsonTable(config.store.root / "config" / "promotion.json", file_system)

    def load(self) -> None:
        """Read the file, if it exists.

        Raises:
            StoreLayoutError: the file and its previous generation cannot be read, or hold something else.
        """
        self._table.load_as(self._take)

    def _take(self, saved: Any) -> None:
        self.promoted_ms, self._known_ms = int(saved["promotedMs"]), int(saved["knownMs"])
        self.former_master, self._role = str(saved["formerMaster"]), str(saved["role"])

    def settings(self) -> dict[str, Any]:
        """Return the settings that make a slave the master."""
        return {"role": self._role, "broker_id": 0, "ha_master": None}

    def next(self, role: str, former_master: str, now_ms: int) -> "Promotion":
        """Return the promotion of this broker now; it is in force once it is saved and the broker opens again."""
        promotion = Promotion(self._config, self._file_system)
        promotion.promoted_ms = promotion._known_ms = max(now_ms, self._known_ms + 1)
        promotion.former_master, promotion._role = former_master, role
        return promotion

    def heard_of(self, promoted_ms: int) -> None:
        """Note the promotion of another broker, which ends that of this one if it is later.

        Raises:
            StoreError: the disk reports an error.
        """
        if promoted_ms > self._known_ms:
            self.promoted_ms, self._known_ms = 0, promoted_ms
            self.save()

    def save(self) -> None:
        """Write the file; may run in a worker thread.

        Raises:
            StoreError: the disk reports an error.
        """
        self._table.save(
            {
                "promotedMs": self.promoted_ms,
                "knownMs": self._known_ms,
                "formerMaster": self.former_master,
                "role": self._role,
            }
        )
