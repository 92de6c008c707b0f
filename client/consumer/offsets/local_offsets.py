"""Progress of broadcasting consumers, in a local file in the format of RocketMQ's Java client.

The file is ``DIR/<client id>/<group>/offsets.json``; the previous version is ``offsets.json.bak`` beside
it.  Each write goes to ``offsets.json.tmp`` first, so whenever the process ends one of the two others is complete.

Java's clients in broadcasting share one client id per machine, and two of one group overwrite each other's file.
Here the folder is locked while a consumer uses it.

Source: behaviour.md B.6, LocalFileOffsetStore.java, OffsetSerializeWrapper.java, MixAll.java.
"""

import fcntl
import os
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Self

import trio
from trio.to_thread import run_sync as run_in_thread

from triomq.client.cluster.instance import ClientInstance
from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.connection.pool import log_retry
from triomq.client.consumer.offsets.offset_store import LOGGER, OffsetStore, RemoteOffsetStore
from triomq.protocol.bodies.client import LocalOffsets, MessageModel
from triomq.protocol.errors import ClientError, ConfigError, ProtocolError
from triomq.protocol.event_log import EventLog
from triomq.protocol.message_queue import MessageQueue, QueueOffset
from triomq.protocol.namespace import Namespace

#: Under the user's home folder.  Source: LocalFileOffsetStore.java.
DEFAULT_DIRECTORY: Final = ".rocketmq_offsets"
_FILE_NAME: Final = "offsets.json"

Offsets = Mapping[MessageQueue, QueueOffset]


class OffsetsFile:
    """The file of one group and client id; all methods block."""

    def __init__(self, directory: Path, lock: int, namespace: Namespace) -> None:
        self._namespace = namespace
        self.path: Final = directory / _FILE_NAME
        self._backup: Final = directory / f"{_FILE_NAME}.bak"
        self._new: Final = directory / f"{_FILE_NAME}.tmp"
        self._lock = lock

    @classmethod
    def open(cls, base: Path, client_id: str, group: str, namespace: Namespace = Namespace()) -> Self:  # noqa: B008  # immutable
        """Create the folder if necessary, and lock it against other consumers of this library until :meth:`close`.

        Raises:
            ConfigError: the folder cannot be made.
            ClientError: another consumer has it open.
        """
        if "/" in client_id or "\0" in client_id:
            raise ConfigError(f"instance_name: client id {client_id!r} cannot name a folder, which broadcasting needs")
        directory = base / client_id / namespace.wrap(group)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as exc:
            raise ConfigError(f"local_offset_dir: {directory} cannot be used: {exc.strerror}") from exc
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise ClientError(
                f"another broadcasting consumer of group {group!r} on this machine has client id {client_id!r} and its "
                f"offsets {directory}: give each its own ClientConfig(instance_name=...)"
            ) from None
        except OSError as exc:  # some network file systems have no locks
            LOGGER.warning("offsets are not protected from a second consumer directory=%s error=%s", directory, exc)
        return cls(directory, lock, namespace)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)

    def load(self) -> dict[MessageQueue, QueueOffset]:
        """Return the last saved offsets; the previous version if the last one is missing, empty or damaged.

        Raises:
            ProtocolError: there is a file, but neither version can be read.
        """
        try:
            offsets = self._read(self.path)
        except ProtocolError as exc:
            offsets = self._read(self._backup)
            if offsets is None:
                raise
            damaged = self.path.with_suffix(".damaged")  # else the next save would make it the backup
            LOGGER.warning("offsets are damaged, using the backup file=%s error=%s", self.path, exc)
            with suppress(OSError):
                self.path.replace(damaged)
        else:
            if offsets is None:
                offsets = self._read(self._backup)
        return offsets or {}

    def save(self, offsets: Offsets) -> None:
        """Replace the file; the old one becomes the backup.

        Raises:
            OSError: it could not be written; file and backup are complete.
        """
        with self._new.open("wb") as file:
            file.write(self._namespace.wrap_json(LocalOffsets(dict(offsets)).encode()))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            self.path.replace(self._backup)
        self._new.replace(self.path)

    def _read(self, path: Path) -> dict[MessageQueue, QueueOffset] | None:
        """Return the offsets of a file, ``None`` if it is missing or empty."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise ProtocolError(f"offsets {path} cannot be read: {exc.strerror}") from exc
        if not data:
            return None
        try:
            table = LocalOffsets.decode(self._namespace.unwrap_json(data)).offset_table
        except ProtocolError as exc:
            raise ProtocolError(f"offsets {path} are damaged: delete the file to start over: {exc}") from exc
        return {queue: QueueOffset(queue_offset) for queue, queue_offset in table.items() if queue_offset >= 0}


class LocalOffsetStore(OffsetStore):
    """Offsets in a file, for groups in which each member has all queues.

    Offsets of queues that are not consumed now stay in the file.
    """

    def __init__(self, file: OffsetsFile, stored: Offsets) -> None:
        super().__init__()
        self._file = file
        self._stored = dict(stored)
        self._saving = trio.Lock()
        self._failures = EventLog(LOGGER, "offsets not stored, retrying file=%s error=%s")

    async def persist(self, queues: Iterable[MessageQueue], *, changed_only: bool) -> None:
        """Write the file if something changed, but not with ``changed_only``: the next full interval does it.

        Twice a second is too often for a file.
        """
        if changed_only:
            await trio.lowlevel.checkpoint()
        else:
            await self.persist_now(queues)

    async def persist_now(self, queues: Iterable[MessageQueue]) -> None:
        """Write the file if the progress of these queues is not in it."""
        await self._save({queue: self._offsets[queue] for queue in queues if queue in self._offsets})

    async def commit(self, offsets: Offsets) -> None:
        """Record progress and write the file.

        Raises:
            ClientError: it cannot be written; it is retried periodically.
        """
        for queue, queue_offset in offsets.items():
            self.update(queue, queue_offset, increase_only=False)
        if error := await self._save(offsets):
            raise ClientError(f"offsets {self._file.path} not stored: {error}") from error

    async def stored(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the offset in the file."""
        await trio.lowlevel.checkpoint()
        return self._stored.get(queue)

    async def store_first(self, first_offsets: Offsets) -> Collection[MessageQueue]:
        """Write where these queues begin; consumption starts even if the file cannot be written now."""
        await self._save(first_offsets)
        return first_offsets.keys()

    async def _save(self, offsets: Offsets) -> OSError | None:
        """Write the file unless it is up to date; return the error, which is logged, if it cannot be written."""
        async with self._saving:
            wanted = {**self._stored, **offsets}
            if wanted == self._stored:
                return None
            try:
                # Not abandoned when cancelled: the next write would collide with this one.
                await run_in_thread(self._file.save, wanted)
            except OSError as exc:
                log_retry(self._failures, str(self._file.path), exc)
                return exc
            self._failures.ended(key=str(self._file.path))
            self._stored = wanted
            return None


@asynccontextmanager
async def open_offsets(
    instance: ClientInstance, group: str, model: MessageModel, directory: str | os.PathLike[str] | None
) -> AsyncGenerator[OffsetStore, None]:
    """Open the store of a group's progress: the brokers, or in broadcasting a file in a local folder.

    Args:
        instance: an open instance.
        group: name of the group.
        model: clustering or broadcasting.
        directory: of the file; ``None``: ``.rocketmq_offsets`` in the user's home.

    Raises:
        ConfigError: the folder cannot be used.
        ClientError: another consumer has the file.
        ProtocolError: neither the file nor its backup can be read.
    """
    if model is not MessageModel.BROADCASTING:
        yield RemoteOffsetStore(QueueRequests(instance, group))
        return
    if instance.config.instance_name is None:
        LOGGER.warning(
            "broadcasting on an instance without instance_name: its client id %s is new each time, so a restart does "
            "not go on where it was group=%s",
            instance.client_id,
            group,
        )
    folder = Path.home() / DEFAULT_DIRECTORY if directory is None else Path(directory)
    file = await run_in_thread(OffsetsFile.open, folder, instance.client_id, group, instance.requests.namespace)
    try:
        yield LocalOffsetStore(file, await run_in_thread(file.load))
    finally:
        file.close()
