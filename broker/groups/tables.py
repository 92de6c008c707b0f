"""The saved tables of groups: consumer offsets (how far each group has consumed each queue), and configurations.

Source: behaviour.md A.12, A.13; ConsumerOffsetManager.java, SubscriptionGroupManager.java, store.md 6.3, 6.4.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

from triomq.broker.saved_table import ConfigTable, SavedTable
from triomq.protocol.bodies.route import SubscriptionGroupConfig
from triomq.protocol.errors import RefusedError
from triomq.protocol.names import validate_group
from triomq.storage.files.json_table import JsonTable, encode_rows
from triomq.storage.reading.cold_read import PAUSE, Work

LOGGER: Final = logging.getLogger("triomq.broker.groups.tables")

_SEPARATOR: Final = "@"
_KEYS_AT_ONCE: Final = 256
_MAX_NUMBER: Final = 2**63 - 1


class ConsumerOffsetTable(SavedTable):
    """``topic@group`` to queue id to the *next* offset to consume.

    A slave copies the master's offsets over its own.  While it cannot reach the master it remembers the offsets that
    clients commit here, also across a restart.  Of such an offset and the master's the higher one stays, once: RocketMQ
    takes the master's, so that groups consume those messages again.

    Attributes:
        keeps_commits: whether offsets are remembered that clients commit now: at a slave that cannot reach its master.
    """

    keeps_commits = False
    _FIELD = "offsetTable"
    _KEPT = "keptOffsets"  # sorts before the other; RocketMQ ignores it

    def __init__(self, table: JsonTable, *, clock_ms: Callable[[], int], max_group_topics: int = 200_000) -> None:
        super().__init__(table)
        self._max_group_topics = max_group_topics
        self._clock_ms = clock_ms
        self._offsets: dict[str, dict[int, int]] = {}
        self._kept: dict[str, dict[int, int]] = {}
        self._changed_ms: dict[str, dict[int, int]] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def _take(self, saved: Any) -> None:
        self._offsets = self._rows(saved, _read_row)
        self._kept = {str(key): _read_row(row) for key, row in (saved.get(self._KEPT) or {}).items()}

    def restrict(self, max_offset_of: Callable[[str, int], int], *, is_slave: bool = False) -> int:
        """Lower offsets beyond the end of their queue, of messages lost in a crash, to that end; return how many.

        Otherwise a group would miss the messages that are stored at these offsets now.

        Args:
            max_offset_of: returns the end of a queue, by topic and queue id.
            is_slave: lower the kept offsets only, as the master's may be ahead of the log here.  A master keeps none.
        """
        if not is_slave and self._kept:
            self._kept, self.is_dirty = {}, True
        count = 0
        for key, offsets in (self._kept if is_slave else self._offsets).items():
            topic, _, group = key.partition(_SEPARATOR)
            for queue_id, offset in offsets.items():
                if offset > (most := max_offset_of(topic, queue_id)):
                    LOGGER.warning(
                        "offset lowered to the end of the queue group=%s topic=%s queue=%d stored=%d end=%d",
                        group, topic, queue_id, offset, most,
                    )  # fmt: skip
                    offsets[queue_id] = most
                    count += 1
        self.is_dirty = self.is_dirty or count > 0
        return count

    def to_json(self) -> dict[str, object]:
        """Return the table as ``consumerOffset.json`` and response 43 hold it."""
        return {self._FIELD: {key: dict(offsets) for key, offsets in self._offsets.items()}}

    def check_room(self, group: str, topic: str) -> None:
        """Check that a client's group may store offsets in a topic.

        Raises:
            RefusedError: too many groups have offsets in too many topics.
        """
        key = f"{topic}{_SEPARATOR}{group}"
        if key not in self._offsets and len(self._offsets) >= self._max_group_topics:
            setting = "max_group_topics"
            raise RefusedError(f"{key}: the broker has offsets of {len(self._offsets)} ({setting})", limit=setting)

    def pieces(self) -> Iterator[bytes]:
        """Yield the content of the file in pieces."""
        head = {self._KEPT: {key: dict(row) for key, row in self._kept.items()}} if self._kept else {}
        return encode_rows(head, self._FIELD, list(self._offsets), self._offsets.get)

    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Store an offset, even a lower one: the members of the group decide."""
        key = f"{topic}{_SEPARATOR}{group}"
        offsets = self._offsets.get(key)
        if offsets is None:
            offsets = self._offsets[key] = {}
        if offsets.get(queue_id) != queue_offset:
            offsets[queue_id] = queue_offset
            self._changed_ms.setdefault(key, {})[queue_id] = self._clock_ms()
            self.is_dirty = True
        if self.keeps_commits:
            self._kept.setdefault(key, {})[queue_id] = queue_offset
            self.is_dirty = True

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the stored offset, or ``None``."""
        offsets = self._offsets.get(f"{topic}{_SEPARATOR}{group}")
        return None if offsets is None else offsets.get(queue_id)

    def has(self, group: str, topic: str) -> bool:
        """Whether any offset of a group in a topic is stored."""
        return f"{topic}{_SEPARATOR}{group}" in self._offsets

    def changed_ms(self, group: str, topic: str, queue_id: int) -> int:
        """Return when the offset last changed, ms; 0 if it has not since the start."""
        return self._changed_ms.get(f"{topic}{_SEPARATOR}{group}", {}).get(queue_id, 0)

    # --- the whole table: there may be very many offsets, so this is long work -------------------------------

    def of_group(self, group: str) -> Work[dict[str, dict[int, int]]]:
        """Return a group's offsets: topic to queue id to offset."""
        found = yield from self._copy(lambda key: key.endswith(_SEPARATOR + group))
        return {key.partition(_SEPARATOR)[0]: offsets for key, offsets in found.items()}

    def of_topic(self, topic: str) -> Work[dict[str, dict[int, int]]]:
        """Return the offsets in a topic: group to queue id to offset."""
        found = yield from self._copy(lambda key: key.startswith(topic + _SEPARATOR))
        return {key.partition(_SEPARATOR)[2]: offsets for key, offsets in found.items()}

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield each topic and group with stored offsets; they may be deleted meanwhile."""
        for key in list(self._offsets):
            topic, _, group = key.partition(_SEPARATOR)
            yield topic, group

    def groups(self) -> Work[dict[str, list[str]]]:
        """Return the topics where each group has stored offsets."""
        found: dict[str, list[str]] = {}
        for topic, group in self.pairs():
            found.setdefault(group, []).append(topic)
            yield PAUSE
        return found

    def copy(self) -> Work[dict[str, object]]:
        """Return the table as :meth:`to_json` does."""
        return {self._FIELD: (yield from self._copy(lambda _: True))}

    def copy_from(self, sent: Any) -> Work[None]:
        """Replace the offsets here by the master's, but kept ones only if the master's are as high."""
        sent_rows = sent.get(self._FIELD) or {}
        for name, row in sent_rows.items():
            key, offsets = str(name), _read_row(row)
            kept = self._kept.get(key, {})
            for queue_id in [queue_id for queue_id, offset in kept.items() if offset <= offsets.get(queue_id, -1)]:
                del kept[queue_id]
                self.is_dirty = True
            self._replace(key, offsets | kept)
            yield PAUSE
        for key in list(self._offsets.keys() - sent_rows.keys()):  # old ones would hide messages of a new topic
            self._replace(key, dict(self._kept.get(key, {})))
            yield PAUSE

    def _replace(self, key: str, row: dict[int, int]) -> None:
        known = self._offsets.get(key, {})
        if row != known:
            changed, now_ms = self._changed_ms.setdefault(key, {}), self._clock_ms()
            changed.update({queue_id: now_ms for queue_id, offset in row.items() if known.get(queue_id) != offset})
            self._offsets[key] = row
            self.is_dirty = True
        if not row:
            self._offsets.pop(key, None)
            self._changed_ms.pop(key, None)

    def take_kept(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield group, topic, queue id and offset of each kept offset; the one before is kept no longer."""
        while self._kept:
            key, row = next(iter(self._kept.items()))
            topic, _, group = key.partition(_SEPARATOR)
            for queue_id, offset in list(row.items()):
                yield group, topic, queue_id, offset
                row.pop(queue_id, None)
                self.is_dirty = True
            self._kept.pop(key, None)

    def delete_group(self, group: str) -> Work[None]:
        """Forget all offsets of a group."""
        yield from self._delete(lambda key: key.endswith(_SEPARATOR + group))

    def delete_topic(self, topic: str) -> Work[None]:
        """Forget all offsets in a deleted topic: the queues of a new one with its name begin at 0."""
        yield from self._delete(lambda key: key.startswith(topic + _SEPARATOR))

    def _keys(self, matches: Callable[[str], bool]) -> Work[list[str]]:
        found: list[str] = []
        keys = list(self._offsets)
        for begin in range(0, len(keys), _KEYS_AT_ONCE):
            found += filter(matches, keys[begin : begin + _KEYS_AT_ONCE])
            yield PAUSE
        return found

    def _copy(self, matches: Callable[[str], bool]) -> Work[dict[str, dict[int, int]]]:
        found: dict[str, dict[int, int]] = {}
        for key in (yield from self._keys(matches)):
            if (offsets := self._offsets.get(key)) is not None:  # it may have been deleted meanwhile
                found[key] = dict(offsets)
            yield PAUSE
        return found

    def _delete(self, matches: Callable[[str], bool]) -> Work[None]:
        for key in (yield from self._keys(matches)):
            for table in (self._offsets, self._changed_ms, self._kept):
                table.pop(key, None)
            self.is_dirty = True
            yield PAUSE


def _read_row(row: Any) -> dict[int, int]:
    read = {int(queue_id): int(offset) for queue_id, offset in row.items()}
    if not all(-_MAX_NUMBER <= number <= _MAX_NUMBER for entry in read.items() for number in entry):
        raise ValueError(f"queue ids or offsets of more than 64 bits, which the file cannot hold: {row!r:.100}")
    return read


_SYSTEM_PREFIX: Final = "CID_RMQ_SYS_"
_BUILT_IN: Final = (
    "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER",
)  # fmt: skip


class SubscriptionGroupTable(ConfigTable[SubscriptionGroupConfig]):
    """Group name to configuration; the first heartbeat or pull of a group creates it, if that is allowed."""

    _FIELD = "subscriptionGroupTable"
    _CONFIG = SubscriptionGroupConfig
    _KIND = "subscription groups"
    _NAME = "group_name"

    def _complete(self) -> None:
        """Add the built-in groups."""
        for name in _BUILT_IN:
            self.configs.setdefault(name, SubscriptionGroupConfig(group_name=name))

    def get_or_create(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a group's configuration, created with the defaults if that is allowed; a slave keeps none.

        Raises:
            IllegalNameError: the group would be created and its name breaks the rules.
            RefusedError: likewise, and there are too many.
        """
        config = self.configs.get(group)
        if config is None and (self._config.auto_create_group or group.startswith(_SYSTEM_PREFIX)):
            self.check_new(group)
            config = SubscriptionGroupConfig(group_name=group)
            if self._config.is_slave:  # which has the groups of its master only
                return config
            LOGGER.info("subscription group created group=%s", group)
            self.put(config)
        return config

    def check_new(self, group: str) -> None:
        """Check the name of a group that anybody wants, and that it may be created unless it exists.

        Raises:
            IllegalNameError: the name breaks the rules.
            RefusedError: there are too many groups.
        """
        validate_group(group)
        self._check_room(group, self._config.max_groups, "max_groups")

    def notifies_members(self, group: str) -> bool:
        """Whether the members of a group are notified when it changes."""
        config = self.configs.get(group)
        return config is None or config.notify_consumer_ids_changed_enable
