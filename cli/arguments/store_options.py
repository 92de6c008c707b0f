"""The typed options of the ``triomq store`` commands."""

from dataclasses import dataclass
from datetime import datetime

from triomq.cli.arguments.options import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions(Options):
    """Options of all of them; ``info`` and ``check`` have no others."""

    store: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreDumpOptions(StoreOptions):
    """``triomq store dump``."""

    topic: str | None
    queue_id: int | None
    key: str | None
    begin: datetime | None
    end: datetime | None
    count: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRepairOptions(StoreOptions):
    """``triomq store repair``."""

    apply: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreExportOptions(StoreOptions):
    """``triomq store export``."""

    topic: str
    file: str
    format: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreImportOptions(StoreOptions):
    """``triomq store import``."""

    file: str
    format: str | None
