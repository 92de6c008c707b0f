"""Tables in memory that are saved as a JSON file in ``config/`` after they have changed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar

from triomq.broker.config import BrokerConfig
from triomq.protocol.bodies.route import DataVersion, SubscriptionGroupConfig, TopicConfig
from triomq.protocol.errors import RefusedError
from triomq.storage.files.json_table import JsonTable, encode, encode_rows
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.cold_read import PAUSE, Work

_SHOWN: Final = 80  # characters of a name in an error


def config_file(store: MessageStore, name: str) -> JsonTable:
    """Return a file of the folder ``config`` of a store."""
    return JsonTable(store.config.root / "config" / f"{name}.json", store.file_system)


Row = TypeVar("Row")
Config = TypeVar("Config", TopicConfig, SubscriptionGroupConfig)


class SavedTable(ABC):
    """A table in memory, and its file in ``config/``.

    A subclass says how the file is read and written; ``services/flush.py`` says when.

    Attributes:
        is_dirty: whether the file lacks the newest changes.
    """

    _FIELD: ClassVar[str]  # of the file: the member with the rows

    def __init__(self, table: JsonTable, on_change: Callable[[], None] = lambda: None) -> None:
        """``on_change`` is called when the table must be saved soon."""
        self._table = table
        self._on_change = on_change
        self.is_dirty = False

    def load(self) -> None:
        """Read the file, if it exists.

        Raises:
            StoreLayoutError: the file and its previous generation cannot be read, or have another content.
        """
        self._table.load_as(self._take)

    @abstractmethod
    def _take(self, saved: Any) -> None:
        """Take the content of the file; errors of a wrong key, type or value may leave."""

    def copy_from(self, sent: Any) -> Work[None]:
        """Take a table of the same kind from the answer of this slave's master; it is saved soon.

        Errors of a wrong key, type or value may leave; the table is then unchanged.
        """
        before = self.to_json()
        try:
            self._take(sent)
            encode(self.to_json())  # as numbers of any length are read, but not written
        except Exception:
            self._take(before)
            raise
        if self.to_json() != before:
            self._changed()
        yield PAUSE

    def _rows(self, saved: Any, read: Callable[[Any], Row]) -> dict[str, Row]:
        """Return the rows of the file, each as ``read`` returns it."""
        return {str(name): read(row) for name, row in (saved.get(self._FIELD) or {}).items()}

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the content of the file."""

    def pieces(self) -> Iterator[bytes]:
        """Yield the content of the file in pieces; of a long table each takes about a millisecond to make."""
        yield encode(self.to_json())

    def write(self, pieces: Sequence[bytes]) -> None:
        """Replace the file by ``pieces``; may run in a worker thread, as to join them may take long.

        Raises:
            StoreFullError, StoreError: the disk refuses; the file is unchanged.
        """
        self._table.write(b"".join(pieces))

    def _changed(self) -> None:
        self.is_dirty = True
        self._on_change()


class ConfigTable(SavedTable, Generic[Config]):
    """Name to configuration, with a version that grows with every change.

    Attributes:
        configs: all of them; only the table changes it.
        data_version: a new object after each change.
    """

    _KIND: str  # of its entries
    _NAME: str  # the attribute that is the name of an entry
    _CONFIG: type[Config]

    def __init__(
        self, table: JsonTable, config: BrokerConfig, *, clock_ms: Callable[[], int], on_change: Callable[[], None]
    ) -> None:
        super().__init__(table, on_change)
        self._config = config
        self._clock_ms = clock_ms
        self.configs: Final[dict[str, Config]] = {}
        self.data_version = DataVersion(counter=0, timestamp=clock_ms())

    def _take(self, saved: Any) -> None:
        self.configs.update(self._rows(saved, self._CONFIG.from_json))
        if isinstance(saved.get("dataVersion"), dict):
            self.data_version = DataVersion.from_json(saved["dataVersion"])

    def load(self) -> None:
        """Read the saved table and add the entries that every broker has.

        Raises:
            StoreLayoutError: the file and its previous generation cannot be read, or hold something else.
        """
        super().load()
        self._complete()

    @abstractmethod
    def _complete(self) -> None:
        """Add the entries that every broker has."""

    def copy_from(self, sent: Any) -> Work[None]:
        """Replace the table by the master's, with its version; do nothing if it has this version already."""
        version = DataVersion.from_json(sent["dataVersion"])
        if version == self.data_version:
            return
        configs: dict[str, Config] = {}
        for name, row in (sent.get(self._FIELD) or {}).items():
            configs[str(name)] = self._CONFIG.from_json(row)
            yield PAUSE
        self.configs.clear()
        self.configs.update(configs)
        self._complete()
        self.data_version = version
        super()._changed()

    def to_json(self) -> dict[str, Any]:
        """Return the table as its file and the responses to slaves hold it."""
        configs = {name: config.to_json() for name, config in self.configs.items()}
        return {"dataVersion": self.data_version.to_json(), self._FIELD: configs}

    def copy(self) -> dict[str, Any]:
        """Return the table as :meth:`to_json` does, with configurations as bodies."""
        return {"dataVersion": self.data_version, self._FIELD: dict(self.configs)}

    def pieces(self) -> Iterator[bytes]:
        """Yield the content of the file in pieces."""

        def row(name: str) -> dict[str, Any] | None:
            config = self.configs.get(name)
            return config.to_json() if config is not None else None

        return encode_rows({"dataVersion": self.data_version.to_json()}, self._FIELD, list(self.configs), row)

    def get(self, name: str) -> Config | None:
        """Return a configuration; nothing is created."""
        return self.configs.get(name)

    def delete(self, name: str) -> bool:
        """Remove an entry; return whether it existed."""
        if self.configs.pop(name, None) is None:
            return False
        self._changed()
        return True

    def _check_room(self, name: str, limit: int, setting: str) -> None:
        """Check that a name is in the table, or has room in it.

        Raises:
            RefusedError: it would be one too many.
        """
        if name in self.configs:
            return
        if len(self.configs) >= limit:
            raise RefusedError(
                f"{name[:_SHOWN]}: the broker has {len(self.configs)} {self._KIND} and may have {limit}: "
                f"delete those that nobody uses, or raise {setting}",
                limit=setting,
            )

    def put(self, config: Config) -> None:
        """Add or replace an entry."""
        self.configs[getattr(config, self._NAME)] = config
        self._changed()

    def _changed(self) -> None:
        self.data_version = DataVersion(counter=self.data_version.counter + 1, timestamp=self._clock_ms())
        super()._changed()
