"""The typed options of the ``triomq store`` commands."""

from dataclasses import dataclass
from datetime import datetime

from triomq.cli.arguments.options import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions(Options):
    """Options of all commands; ``info`` and ``check`` have no others."""

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
