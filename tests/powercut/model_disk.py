"""A disk in memory that loses unflushed data at a power cut.

What is true of real disks and file systems, and nothing better, holds here:

* ``sync_file`` makes the content of one file durable, ``sync_directory`` the names in one directory.  A new directory
  is a name in its parent.
* Of content that was not synced any sectors may be on the disk, in any order, in the state of any earlier moment
  (``_write_back`` plays the kernel's write-back).  No sector is written by half: disks promise that, and RocketMQ's
  format needs it, as its checksum covers nothing but the body.
* Of names that were not synced any may be there or not, old or new; one rename is never done by half in a directory.
* A file that was never synced may be empty although its length was set.

``boundary`` is called before each operation that changes something, also before each write through a mapping: there
the power can be cut.  Source: store.md 5.11.
"""

import errno
import os
from collections.abc import Iterable, Iterator
from math import inf
from mmap import mmap
from pathlib import Path
from random import Random
from typing import Any, Final

from triomq.storage.files.file_system import DirectoryEntry, DiskSpace, FileSystem, OpenFile

SECTOR: Final = 512
PAGE: Final = 4096
_WRITE_BACK_CHANCE: Final = 0.1


class PowerCutError(BaseException):
    """The machine is off; no handler of ``Exception`` may catch this."""


class _Map(mmap):
    """A mapping that reports each write to the disk."""

    disk: "ModelDisk"

    def __setitem__(self, key: Any, value: Any) -> None:
        self.disk.changing()
        super().__setitem__(key, value)


class Inode:
    """One file: its content for programs, and its content on the disk.

    Attributes:
        seen: the content as programs see it.
        durable: the content that survives.
        size_is_durable: whether the length survives too.
    """

    __slots__ = ("durable", "seen", "size_is_durable")

    def __init__(self, seen: "_Map | bytearray", durable: bytes = b"", *, size_is_durable: bool = False) -> None:
        self.seen = seen
        self.durable = bytearray(durable)
        self.size_is_durable = size_is_durable

    def sync(self) -> None:
        self.durable = bytearray(self.seen)
        self.size_is_durable = True


class _Handle(OpenFile):
    """An open file without a descriptor."""

    __slots__ = ("inode",)

    def __init__(self, inode: Inode, path: Path) -> None:
        super().__init__(-1, path)
        self.inode = inode

    def __del__(self) -> None:
        """Nothing to close."""


Node = Inode | None  # None is a directory
Change = dict[Path, "Node | bool"]  # False: the name goes away


class ModelDisk(FileSystem):
    """The file system below one directory, which itself is durable."""

    def __init__(self, base: Path, random: Random) -> None:
        self.base = base
        self.random = random
        self.capacity_bytes = 1024**4
        self.boundaries = 0
        self.cut_at: float = inf  # boundary at which the power is cut
        self._names: dict[Path, Node] = {base: None}
        self._durable_names: dict[Path, Node] = {base: None}
        self._pending: list[Change] = []
        self._created: list[Inode] = []  # with a length that may get lost

    # What a power cut does

    def changing(self) -> None:
        """Cut the power if this is the place for it, and give the kernel a chance to write something back."""
        self.boundaries += 1
        if self.boundaries >= self.cut_at:
            raise PowerCutError
        if self.random.random() < _WRITE_BACK_CHANCE:
            self._write_back()

    def cut_later(self, boundary: int) -> None:
        """Cut the power at this boundary from now on."""
        self.cut_at = self.boundaries + boundary

    def after_power_cut(self, random: Random, *, keep: float | None = None) -> "ModelDisk":
        """Return the disk as the machine finds it when it is on again; this one stays unchanged.

        ``keep`` is the share of unflushed changes that survive, without it any.
        """
        found = ModelDisk(self.base, random)
        keep = random.choice((0.0, 0.2, 0.5, 0.8, 1.0)) if keep is None else keep
        names = dict(self._durable_names)
        for change in self._pending:
            if random.random() < keep:
                _apply(names, change)
        lost_sizes = self._created[random.randint(0, len(self._created)) :]
        copies: dict[int, Inode] = {}
        for path in sorted(names):
            if path != self.base and path.parent not in found._names:
                continue  # a name in a missing directory cannot be found
            node = names[path]
            if node is not None:
                copy = copies.get(id(node))
                if copy is None:
                    size_is_lost = any(node is lost for lost in lost_sizes)
                    copy = copies[id(node)] = found._load(b"" if size_is_lost else _survivor(node, random, keep))
                node = copy
            found._names[path] = node
        found._durable_names = dict(found._names)
        return found

    def content(self) -> dict[Path, bytes]:
        """Return all files as programs see them."""
        return {path: bytes(node.seen) for path, node in self._names.items() if node is not None}

    def put(self, path: Path, content: bytes) -> None:
        """Let a file have this content, durable, without a boundary: for tests that damage files."""
        self._names[path] = self._durable_names[path] = self._load(content)

    def _write_back(self) -> None:
        inodes = [node for node in self._names.values() if node is not None and len(node.durable) == len(node.seen)]
        if not inodes:
            return
        inode = self.random.choice(inodes)
        for at in range(0, len(inode.seen), PAGE):
            if self.random.random() < 0.5:
                inode.durable[at : at + PAGE] = inode.seen[at : at + PAGE]

    def _load(self, content: bytes) -> Inode:
        return Inode(bytearray(content), content, size_is_durable=True)

    def _change(self, change: Change) -> None:
        _apply(self._names, change)
        self._pending.append(change)

    def _file(self, path: Path) -> Inode:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        node = self._names[path]
        if node is None:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return node

    # The file system

    def make_directories(self, path: Path) -> None:
        if path in self._names:
            if self._names[path] is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            return
        self.make_directories(path.parent)
        self.changing()
        self._change({path: None})

    def list_directory(self, path: Path) -> list[DirectoryEntry]:
        return sorted(
            DirectoryEntry(entry.name, node is not None, node is None, 0 if node is None else len(node.seen))
            for entry, node in self._names.items()
            if entry.parent == path and entry != path
        )

    def exists(self, path: Path) -> bool:
        return path in self._names

    def create_file(self, scratch: Path, size_bytes: int, path: Path) -> OpenFile:
        if path in self._names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        self.changing()
        inode = Inode(self._new_map(size_bytes), bytes(size_bytes))
        self._created.append(inode)
        self._change({scratch: inode})
        return _Handle(inode, path)

    def open_file(self, path: Path) -> OpenFile:
        return _Handle(self._file(path), path)

    def map_file(self, file: OpenFile, size_bytes: int) -> mmap:
        inode = _inode(file)
        assert len(inode.seen) == size_bytes
        if not isinstance(inode.seen, _Map):
            content, inode.seen = inode.seen, self._new_map(size_bytes)
            mmap.__setitem__(inode.seen, slice(0, size_bytes), bytes(content))
        return inode.seen

    def expect_order(self, map_: mmap, *, in_order: bool) -> None:
        """All of it is in memory."""

    def reserve(self, file: OpenFile, start: int, length: int) -> None:
        assert 0 <= start < start + length <= len(_inode(file).seen)
        self.changing()

    def read(self, file: OpenFile, start: int, length: int) -> bytes:
        return bytes(_inode(file).seen[start : start + length])

    def zero(self, file: OpenFile, start: int, length: int) -> None:
        inode = _inode(file)
        if not isinstance(inode.seen, _Map):  # which reports each write itself
            self.changing()
        inode.seen[start : start + length] = bytes(length)

    def data_ranges(self, file: OpenFile, start: int, end: int) -> Iterator[tuple[int, int]]:
        seen = _inode(file).seen
        for at in range(start - start % PAGE, end, PAGE):
            if any(seen[at : at + PAGE]):
                yield max(at, start), min(at + PAGE, end)

    def read_ahead(self, file: OpenFile, start: int, end: int) -> None:
        """Everything is in memory."""

    def is_resident(self, map_: mmap, start: int, end: int) -> bool:
        return True

    def read_into_memory(self, file: OpenFile, start: int, end: int) -> None:
        """As ``read_ahead``."""

    def modified_ms(self, file: OpenFile) -> int:
        return 0  # the clock never moves: nothing is deleted by age

    def sync_file(self, file: OpenFile) -> None:
        self.changing()
        inode = _inode(file)
        inode.sync()
        self._created = [created for created in self._created if created is not inode]

    def sync_directory(self, path: Path) -> None:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self.changing()
        for change in self._pending:
            here: Change = {name: change.pop(name) for name in list(change) if name.parent == path}
            _apply(self._durable_names, here)
        self._pending = [change for change in self._pending if change]

    def sync_all(self, paths: Iterable[Path]) -> None:
        for path in paths:
            if self._names.get(path) is not None:
                self.sync_file(self.open_file(path))
            elif path in self._names:
                self.sync_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        self.changing()
        self._change({source: False, target: self._file(source)})

    def unlink(self, path: Path) -> None:
        if path in self._names:
            self.changing()
            self._change({path: False})

    def remove_directory(self, path: Path) -> None:
        if self.list_directory(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
        self.changing()
        self._change({path: False})

    def read_file(self, path: Path) -> bytes:
        return bytes(self._file(path).seen)

    def write_file(self, path: Path, content: bytes) -> None:
        self.changing()
        inode = Inode(bytearray(content), bytes(len(content)))
        self._change({path: inode})
        self.changing()
        inode.sync()

    def overwrite_file(self, path: Path, content: bytes) -> None:
        if path not in self._names:
            self.write_file(path, content)
            return
        inode = self._file(path)
        self.changing()
        inode.seen[:] = content
        self.changing()
        inode.sync()

    def space(self, path: Path) -> DiskSpace:
        used = sum(len(content) for content in self.content().values())
        return DiskSpace(used, max(self.capacity_bytes - used, 0))

    def _new_map(self, size_bytes: int) -> _Map:
        mapping = _Map(-1, size_bytes)
        mapping.disk = self
        return mapping


def _inode(file: OpenFile) -> Inode:
    assert isinstance(file, _Handle)
    return file.inode


def _apply(names: dict[Path, Node], change: Change) -> None:
    for path, node in change.items():
        if isinstance(node, bool):
            names.pop(path, None)
        else:
            names[path] = node


def _survivor(inode: Inode, random: Random, keep: float) -> bytes:
    """Return the synced content with any part of the later writes."""
    seen, found = bytes(inode.seen), bytearray(inode.durable)
    if len(seen) != len(found):
        return bytes(random.choice((seen, found)))
    for at in range(0, len(seen), SECTOR):
        end = min(at + SECTOR, len(seen))
        if random.random() < keep:
            found[at:end] = seen[at:end]
    return bytes(found)
