"""All consume queues of a store, by topic and queue id."""

import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from triomq.protocol.errors import IllegalNameError, StoreError
from triomq.protocol.names import validate_topic
from triomq.protocol.record.consume_queue_unit import UNIT_SIZE
from triomq.storage.config import StoreConfig
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.files.file_system import DiskWork, FileSystem, list_store_directory, translated
from triomq.storage.files.mapped_file import MappingPool, affordable_mappings
from triomq.storage.files.mapped_file_queue import SCRATCH, FoundFiles, MappedFileQueue, check_directory

_QUEUE_ID_PATTERN: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_MAX_QUEUE_ID: Final = 2**31 - 1


class QueueLayout(NamedTuple):
    """A queue's directory as it was found."""

    topic: str
    queue_id: int
    directory: Path
    files: FoundFiles


class QueueTable:
    """Finds and makes consume queues.

    A queue stays the same object while the store is open.  The table drops the queues of a deleted topic, but finds
    them again as long as anybody holds them, and takes them back with their next message.

    Attributes:
        pool: which files are mapped.
        units_in_file: number of units of one file.
    """

    def __init__(self, config: StoreConfig, file_system: FileSystem) -> None:
        """Describe the queues below ``consumequeue``; opens nothing."""
        self._config = config
        self._file_system = file_system
        self._directory = config.root / "consumequeue"
        self._topics: dict[str, dict[int, ConsumeQueue]] = {}
        self._being_deleted: set[str] = set()
        self._deleted: WeakValueDictionary[tuple[str, int], ConsumeQueue] = WeakValueDictionary()
        self.pool = MappingPool(affordable_mappings())
        self.units_in_file = config.consume_queue_file_size_bytes // UNIT_SIZE

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return chain.from_iterable(queues.values() for queues in self._topics.values())

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue that exists."""
        queues = self._topics.get(topic)
        return queues.get(queue_id) if queues is not None else None

    def get(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue; a new one exists in memory only until its first unit.

        Raises:
            IllegalNameError: ``topic`` could not be a topic, or ``queue_id`` a queue id.
        """
        queue = self.find(topic, queue_id)
        if queue is None:
            queue = self._deleted.get((topic, queue_id))
            if queue is None:
                validate_queue(topic, queue_id)
                return self._add(topic, queue_id, self._directory / topic / str(queue_id))
            self._adopt(queue)
        return queue

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """Return the queues of one topic."""
        return list(self._topics.get(topic, {}).values())

    def scan(self, *, may_be_torn: bool) -> list[QueueLayout]:
        """Look at all queue directories and check them, see ``check_directory``; changes nothing.

        A directory whose name is no topic or no queue id is skipped, the latter as RocketMQ does.

        Raises:
            StoreLayoutError: a directory cannot be read, or holds anything but files of the right size.
        """
        found = []
        size = self._config.consume_queue_file_size_bytes
        for topic in filter(is_topic_name, self._list(self._directory)):
            above = self._directory / topic
            for name in self._list(above):
                if _QUEUE_ID_PATTERN.fullmatch(name) and int(name) <= _MAX_QUEUE_ID:
                    directory = above / name
                    entries = list_store_directory(self._file_system, directory)
                    files = check_directory(directory, entries, size, may_be_torn=may_be_torn)
                    found.append(QueueLayout(topic, int(name), directory, files))
        return found

    def load(self, layouts: Iterable[QueueLayout]) -> None:
        """Take over the files that ``scan`` found; they are opened when they are needed.

        Raises:
            StoreError: a file that does not fit cannot be deleted.
        """
        for topic, queue_id, directory, files in layouts:
            self._add(topic, queue_id, directory).files.load(files)

    def destroy_topic(
        self, topic: str, record: DiskWork | None, forget: Callable[[Collection[ConsumeQueue]], None]
    ) -> Generator[Sequence[DiskWork], None, int]:
        """Delete the files of all queues of ``topic``, also on the disk, and return how many queues had some.

        Yields after each queue, and calls that wait for the disk.  Until all are deleted they take no messages.

        Args:
            topic: the topic.
            record: remembers the deletion, before anything is deleted.
            forget: is called with the queues after that.

        Raises:
            StoreError: the topic is being deleted, or its deletion cannot be recorded: nothing has changed.  Or
                something cannot be deleted: the queues are empty, but take no messages until a later call succeeds:
                these would lie before or after remains of the old files.
        """
        if topic in self._being_deleted:
            raise StoreError(f"topic[{topic}] is being deleted")
        self._being_deleted.add(topic)
        try:
            queues = self.of_topic(topic)
            failed = {queue for queue in queues if queue.refusal is not None}
            for queue in queues:
                queue.refuse(StoreError("its queues are being deleted"))
            if record is not None:
                try:
                    yield (record,)
                except StoreError:
                    for queue in set(queues) - failed:
                        queue.refusal = None
                    raise
            forget(queues)
            return (yield from self._destroy(topic, queues, failed))
        finally:
            self._being_deleted.discard(topic)

    def _destroy(
        self, topic: str, queues: Sequence[ConsumeQueue], failed: Collection[ConsumeQueue]
    ) -> Generator[Sequence[DiskWork], None, int]:
        destroyed = 0
        refusal: StoreError | None = None
        for queue in queues:
            destroyed += bool(queue.files.files) or queue in failed
            try:
                queue.destroy()
            except StoreError as exc:
                refusal = refusal or exc
            yield ()
        try:
            self.remove_if_empty(topic)
            if destroyed:
                yield (DiskWork(partial(self._sync, self._directory / topic)),)
        except StoreError as exc:
            refusal = refusal or exc
        for queue in queues:
            queue.refusal = refusal
        if refusal is not None:
            raise refusal
        left = self._topics.get(topic, {})
        for queue in queues:
            self._deleted[topic, queue.queue_id] = queue
            left.pop(queue.queue_id, None)
        if not left:
            self._topics.pop(topic, None)
        return destroyed

    def _sync(self, directory: Path) -> None:
        """Sync a topic's directory, or the one above if it is gone."""
        above = directory if self._file_system.exists(directory) else self._directory
        with translated("sync", above):
            self._file_system.sync_directory(above)

    def remove_preallocated_files(self) -> None:
        """Delete the files past the end of each queue, as a clean stop does.

        Raises:
            StoreError: a file cannot be deleted.
        """
        for queue in self:
            files = queue.files
            used = sum(file.start < queue.end_position for file in files.files)
            if used < len(files.files):
                files.remove_from(used)
                if not used:
                    files.remove_directory()
                    self.remove_if_empty(queue.topic)

    def remove_if_empty(self, topic: str) -> None:
        """Remove the directory of a topic that has no queue on disk any more.

        Raises:
            StoreError: it cannot be removed.
        """
        directory = self._directory / topic
        if is_topic_name(topic) and self._file_system.exists(directory):
            with translated("delete", directory):
                if not self._file_system.list_directory(directory):
                    self._file_system.remove_directory(directory)

    def _list(self, directory: Path) -> list[str]:
        return [entry.name for entry in list_store_directory(self._file_system, directory) if entry.is_directory]

    def _add(self, topic: str, queue_id: int, directory: Path) -> ConsumeQueue:
        files = MappedFileQueue(
            self._file_system,
            directory,
            self._config.consume_queue_file_size_bytes,
            reserve_step_bytes=self._config.consume_queue_reserve_step_bytes,
            scratch=self._config.root / SCRATCH,
            pool=self.pool,
        )
        queue = ConsumeQueue(topic, queue_id, files, self._config.commit_log_file_size_bytes, self._adopt)
        self._adopt(queue)
        return queue

    def _adopt(self, queue: ConsumeQueue) -> None:
        self._topics.setdefault(queue.topic, {})[queue.queue_id] = queue


def validate_queue(topic: str, queue_id: int) -> None:
    """Refuse what no queue can be called.

    Raises:
        IllegalNameError: ``topic`` could not be a topic, or ``queue_id`` a queue id.
    """
    validate_topic(topic)
    if not 0 <= queue_id <= _MAX_QUEUE_ID:
        raise IllegalNameError(f"queue id {queue_id} of topic {topic}: must be 0 to {_MAX_QUEUE_ID}")


def is_topic_name(text: str) -> bool:
    """Tell whether ``text`` may be a topic, so that it is safe as the name of a directory."""
    try:
        validate_topic(text)
    except IllegalNameError:
        return False
    return True
