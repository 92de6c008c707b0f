"""The broker's topics: their configuration, system topics, and creation by sending.

Source: behaviour.md A.2; TopicConfigManager.java.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from triomq.protocol.bodies.route import DataVersion, TopicConfig
from triomq.protocol.codes import Permission
from triomq.protocol.errors import IllegalNameError, ProtocolError, StoreLayoutError
from triomq.protocol.names import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    TIMER_TOPIC,
    reply_topic,
    system_topics,
    validate_topic,
)
from triomq.storage.files.json_table import JsonTable, encode

LOGGER: Final = logging.getLogger("triomq.broker.topics")

_READ_WRITE: Final = int(Permission.READ | Permission.WRITE)
_READ_WRITE_INHERIT: Final = int(Permission.READ | Permission.WRITE | Permission.INHERIT)
#: More queues than this in one topic are a mistake or an attack: each costs a file.
MAX_QUEUES: Final = 65_536


class TopicTable:
    """Topic name to configuration; every change raises the data version and marks the table for saving.

    Attributes:
        data_version: grows with every change.
        is_dirty: it is not on the disk as it is.
        on_change: called when it shall be saved.
        system_topics: topics that clients may not change.
    """

    def __init__(
        self,
        table: JsonTable,
        *,
        cluster_name: str,
        broker_name: str,
        default_queues: int,
        auto_create: bool,
        clock_ms: Callable[[], int],
    ) -> None:
        self._table = table
        self._clock_ms = clock_ms
        self._configs: dict[str, TopicConfig] = {}
        self.data_version = DataVersion(counter=0, timestamp=clock_ms())
        self.is_dirty = False
        self.on_change: Callable[[], None] | None = None
        self.system_topics: Final = system_topics(cluster_name, broker_name)
        self._built_in = [
            _config(SELF_TEST_TOPIC, 1),
            _config(BENCHMARK_TOPIC, 1024),
            _config(cluster_name, 16, _READ_WRITE_INHERIT),
            _config(broker_name, 1, _READ_WRITE_INHERIT),
            _config(OFFSET_MOVED_TOPIC, 1),
            _config(SCHEDULE_TOPIC, 18),
            _config(TIMER_TOPIC, 1),
            _config(reply_topic(cluster_name), 1),
        ]
        if auto_create:
            self._built_in.append(_config(AUTO_CREATE_TOPIC, default_queues, _READ_WRITE_INHERIT))
        self._auto_create = auto_create

    def load(self) -> None:
        """Read the saved table and add the system topics.

        Raises:
            StoreLayoutError: the file and its previous generation cannot be read, or hold no topics.
        """
        saved = self._table.load() or {}
        try:
            for name, entry in dict(saved.get("topicConfigTable") or {}).items():
                self._configs[str(name)] = TopicConfig.from_json(entry)
            if isinstance(saved.get("dataVersion"), dict):
                self.data_version = DataVersion.from_json(saved["dataVersion"])
        except (AttributeError, TypeError, ValueError, ProtocolError) as exc:
            raise StoreLayoutError(f"topics.json holds something else than topics: {exc}") from exc
        missing = [config for config in self._built_in if config.topic_name not in self._configs]
        for config in self._built_in:
            self._configs[config.topic_name] = config
        if not self._auto_create:
            self._configs.pop(AUTO_CREATE_TOPIC, None)
        if missing:  # RocketMQ deletes the queues of topics that the file does not name with the next topic it deletes
            self._ask_for_saving()

    def adopt(self, queues: Iterable[tuple[str, int]]) -> None:
        """Add topics that have data but no configuration, as after a crash before the table was saved."""
        found: dict[str, int] = {}
        for topic, queue_id in queues:
            if topic not in self._configs and topic != OP_HALF_TOPIC:
                found[topic] = max(found.get(topic, 0), queue_id + 1)
        for topic, count in found.items():
            LOGGER.warning("topic has data but no configuration topic=%s queues=%d: added", topic, count)
            self.put(_config(topic, count))

    def to_json(self) -> dict[str, object]:
        """Return the table as ``topics.json`` and response 21 hold it."""
        return {
            "dataVersion": self.data_version.to_json(),
            "topicConfigTable": {name: config.to_json() for name, config in self._configs.items()},
        }

    def encode(self) -> bytes:
        """Return the table's file as it shall be now."""
        return encode(self.to_json())

    def write(self, content: bytes) -> None:
        """Write what :meth:`encode` returned to the file; may run in a worker thread."""
        self._table.write(content)

    # --- look-up ----------------------------------------------------------------------------------------

    def get(self, topic: str) -> TopicConfig | None:
        """Return the configuration of a topic."""
        return self._configs.get(topic)

    def names(self) -> list[str]:
        """Return all topics, system topics included."""
        return list(self._configs)

    # --- changes ----------------------------------------------------------------------------------------

    def put(self, config: TopicConfig) -> None:
        """Add or replace a topic."""
        self._configs[config.topic_name] = config
        self._changed()

    def delete(self, topic: str) -> bool:
        """Remove a topic; whether it was there."""
        if self._configs.pop(topic, None) is None:
            return False
        self._changed()
        return True

    def create_by_sending(self, topic: str, template_topic: str, queues: int) -> TopicConfig | None:
        """Create an unknown topic after the template that the sender names; ``None`` if that is not allowed.

        Raises:
            IllegalNameError: the name breaks RocketMQ's rules.
        """
        validate_topic(topic)
        template = self._configs.get(template_topic)
        if template is not None and template.perm & Permission.INHERIT:
            count = max(0, min(queues, template.write_queue_nums))
            config = _config(topic, count, template.perm & ~int(Permission.INHERIT))
        elif topic.startswith(RETRY_PREFIX):
            config = _config(topic, 1)
        else:
            return None
        LOGGER.info("topic created by sending topic=%s queues=%d", topic, config.write_queue_nums)
        self.put(config)
        return config

    def ensure(self, topic: str, queues: int, sys_flag: int = 0) -> TopicConfig:
        """Return the topic, created readable and writable with ``queues`` queues if it is not there.

        Raises:
            IllegalNameError: it is not there, and its name breaks RocketMQ's rules.
        """
        config = self._configs.get(topic)
        if config is None:
            validate_topic(topic)
            config = _config(topic, queues)
            config.topic_sys_flag = sys_flag
            self.put(config)
        return config

    def check_changeable(self, topic: str) -> None:
        """Refuse a change of a system topic by a client.

        Raises:
            IllegalNameError: the name breaks the rules or belongs to the system.
        """
        validate_topic(topic)
        if topic in self.system_topics:
            raise IllegalNameError(f"the topic[{topic}] is conflict with system topic: choose another name")

    def _changed(self) -> None:
        self.data_version = DataVersion(counter=self.data_version.counter + 1, timestamp=self._clock_ms())
        self._ask_for_saving()

    def _ask_for_saving(self) -> None:
        self.is_dirty = True
        if self.on_change is not None:
            self.on_change()


def _config(topic: str, queues: int, perm: int = _READ_WRITE) -> TopicConfig:
    return TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
