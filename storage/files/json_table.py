"""JSON tables in ``config/``: topics, subscription groups, consumer offsets and the like.

A table is replaced as a whole: written beside, forced to the disk, renamed; the generation before stays as ``.bak``.
What is written is standard JSON in ASCII, because RocketMQ reads and writes the text in its machine's character set.
Source: ConfigManager.java, MixAll.java; store.md 6.1.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson

from triomq.protocol.bodies import fastjson
from triomq.protocol.errors import ProtocolError, StoreLayoutError
from triomq.storage.files.file_system import FileSystem, translated

LOGGER: Final = logging.getLogger("triomq.storage.files.json_table")

Content = TypeVar("Content")

_MEMBERS_AT_ONCE: Final = 2048  # with the rows that they are of
_END: Final = b"}\n}"  # of an empty object in another
_END_OF_ROWS: Final = b"\n  }\n}"
_END_OF_ROW: Final = b"\n    }" + _END_OF_ROWS


class JsonTable:
    """One table on disk; holds no data itself.

    Attributes:
        path, backup_path: of the table and of its previous generation.
    """

    def __init__(self, path: Path, file_system: FileSystem | None = None) -> None:
        """Name the table's file, such as ``<root>/config/topics.json``; nothing is read."""
        self.path = path
        self.backup_path = path.with_name(path.name + ".bak")
        self._file_system = file_system or FileSystem()
        self._keep_backup = False
        self._directory_is_synced = False

    def load(self) -> Any:
        """Return the table, or its backup if it is missing, empty or damaged; ``None`` if there is neither.

        Maps with integer keys, which RocketMQ writes without quotes, have the keys that ``fastjson.loads`` gives.

        Raises:
            StoreLayoutError: neither the file nor its backup can be read.
        """
        main, reason = self._read(self.path)
        if main is not None:
            return main
        backup, backup_reason = self._read(self.backup_path)
        if backup is not None:
            self._keep_backup = True  # the first save must not replace it by the damaged table
            problem = reason or f"{self.path} is missing or empty"
            LOGGER.warning("table taken from its backup, later changes are lost path=%s reason=%s", self.path, problem)
            return backup
        if problem := backup_reason or reason:
            raise StoreLayoutError(f"{problem}; restore the file, or delete it to start without its content")
        if self._file_system.exists(self.path):
            LOGGER.warning("table is empty path=%s", self.path)
        return None

    def load_as(self, read: Callable[[Any], Content]) -> Content | None:
        """Read the table with ``read`` and return its result; ``None`` if it was never saved.

        Raises:
            StoreLayoutError: neither the file nor its backup can be read, or ``read`` finds something else in them.
        """
        try:
            saved = self.load()
            return None if saved is None else read(saved)
        except (AttributeError, KeyError, TypeError, ValueError, ProtocolError) as exc:
            raise StoreLayoutError(
                f"{self.path} does not hold its table ({exc!r}); restore it, or delete it to start without its content"
            ) from exc

    def save(self, table: Any) -> None:
        """Replace the table by ``table``, a value ``json`` can write; ``encode`` and ``write`` in one.

        Raises:
            StoreFullError, StoreError: the disk reports an error; the table is unchanged.
        """
        self.write(encode(table))

    def write(self, content: bytes) -> None:
        """Replace the table by the result of ``encode``.  May run in a worker thread, one call at a time.

        Raises:
            StoreFullError, StoreError: the disk reports an error; the table is unchanged.
        """
        files = self._file_system
        scratch = self.path.with_name(self.path.name + ".tmp")
        with translated("write", self.path):
            if not self._directory_is_synced:
                files.make_directories(self.path.parent)
                files.sync_directory(self.path.parent.parent)
                self._directory_is_synced = True
            files.write_file(scratch, content)
            if not self._keep_backup and files.exists(self.path):
                files.rename(self.path, self.backup_path)
            files.rename(scratch, self.path)
            files.sync_directory(self.path.parent)
        self._keep_backup = False

    def _read(self, path: Path) -> tuple[Any, str]:
        """Return the content, or ``None`` and the reason, which is "" for a missing or empty file."""
        try:
            content = self._file_system.read_file(path)
        except FileNotFoundError:
            return None, ""
        except OSError as exc:
            return None, f"cannot read {path}: {exc.strerror}"
        if not content.strip(b"\0 \t\r\n"):  # a file that was being written when the power failed
            return None, ""
        try:
            return fastjson.loads(content), ""
        except ProtocolError as exc:
            return None, f"{path} is not JSON: {exc}"


def encode(table: Any) -> bytes:
    """Return ``table`` as JSON in ASCII, indented for readers; integer keys are quoted."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS
    content = orjson.dumps(table, option=options)
    return content if content.isascii() else json.dumps(table, indent=2, sort_keys=True).encode("ascii")


def encode_rows(
    head: Mapping[str, Any], field: str, names: Sequence[str], row: Callable[[str], Mapping[Any, Any] | None]
) -> Iterator[bytes]:
    """Yield ``encode({**head, field: {name: row(name) ...}})`` in pieces that each take about a millisecond to make.

    Args:
        head: the other members; their names sort before ``field``.
        field: the member that holds the rows.
        names: of the rows; only those of one piece are sorted, and likewise the members of a long row.
        row: returns one; ``None``, for one that has gone meanwhile, leaves it out.
    """
    yield encode({**head, field: {}})[: -len(_END)]
    separator, end = b"", _END
    for text in _row_texts(field, names, row):
        yield separator + text
        separator, end = b",", _END_OF_ROWS
    yield end


def _row_texts(field: str, names: Sequence[str], row: Callable[[str], Mapping[Any, Any] | None]) -> Iterator[bytes]:
    """Yield the texts of rows, and of parts of long ones; there must be commas between them."""
    begin = len(encode({field: {}})) - len(_END)
    rows: dict[str, Mapping[Any, Any]] = {}
    members = 0
    for name in names:
        found = row(name)
        if found is None:
            continue
        if len(found) > _MEMBERS_AT_ONCE:
            yield from _part_texts(field, name, found, begin)
            continue
        rows[name] = found
        members += 1 + len(found)
        if members > _MEMBERS_AT_ONCE:
            yield encode({field: rows})[begin : -len(_END_OF_ROWS)]
            rows, members = {}, 0
    if rows:
        yield encode({field: rows})[begin : -len(_END_OF_ROWS)]


def _part_texts(field: str, name: str, row: Mapping[Any, Any], begin: int) -> Iterator[bytes]:
    """Yield the texts of the parts of a row, which may change meanwhile."""
    members, left = iter(dict(row).items()), len(row)
    while left > 0:
        part = dict(islice(members, _MEMBERS_AT_ONCE))
        left -= len(part)
        yield encode({field: {name: part}})[begin : -len(_END_OF_ROW if left else _END_OF_ROWS)]
        begin = len(encode({field: {name: {}}})) - len(b"}" + _END_OF_ROWS)
