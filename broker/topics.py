"""The broker's topics: their configuration, system topics, and creation by sending.

Source: behaviour.md A.2; TopicConfigManager.java.
"""

import logging
from collections.abc import Callable, Iterable
from itertools import islice
from random import Random
from typing import Final

from triomq.broker.config import BrokerConfig
from triomq.broker.saved_table import ConfigTable
from triomq.protocol import names
from triomq.protocol.bodies.route import TopicConfig
from triomq.protocol.codes import Permission
from triomq.protocol.errors import IllegalNameError
from triomq.storage.files.json_table import JsonTable

LOGGER: Final = logging.getLogger("triomq.broker.topics")

_NAMED: Final = 20  # topics, in one line of the log
_READ_WRITE: Final = int(Permission.READ | Permission.WRITE)
_READ_WRITE_INHERIT: Final = int(Permission.READ | Permission.WRITE | Permission.INHERIT)


class TopicTable(ConfigTable[TopicConfig]):
    """Topic name to configuration.

    Attributes:
        system_topics: topics that clients may not change.
        random: chooses the queue of a message whose sender names none.
    """

    _FIELD = "topicConfigTable"
    _CONFIG = TopicConfig
    _KIND = "topics"
    _NAME = "topic_name"

    def __init__(
        self,
        table: JsonTable,
        config: BrokerConfig,
        clock_ms: Callable[[], int],
        on_change: Callable[[], None],
        random: Random,
    ) -> None:
        super().__init__(table, config, clock_ms=clock_ms, on_change=on_change)
        self.random: Final = random
        self._built_in = [
            _config(names.SELF_TEST_TOPIC, 1),
            _config(names.BENCHMARK_TOPIC, 1024),
            _config(config.cluster_name, 16, _READ_WRITE_INHERIT),
            _config(config.broker_name, 1, _READ_WRITE_INHERIT),
            _config(names.OFFSET_MOVED_TOPIC, 1),
            _config(names.SCHEDULE_TOPIC, 18),
            _config(names.TIMER_TOPIC, 1),
            _config(names.reply_topic(config.cluster_name), 1),
            _config(names.TRACE_TOPIC, 1),
        ]
        self.system_topics: Final = names.system_topics(config.cluster_name, config.broker_name)

    def _complete(self) -> None:
        """Add the system topics."""
        built_in = [*self._built_in, *self._template()]
        is_complete = all(config.topic_name in self.configs for config in built_in)
        self.configs.pop(names.AUTO_CREATE_TOPIC, None)
        self.configs.update({config.topic_name: config for config in built_in})
        if not is_complete:  # when RocketMQ deletes a topic, it also deletes the queues of topics missing in the file
            self.is_dirty = True
            self._on_change()

    def _template(self) -> list[TopicConfig]:
        """Return the template of topics that are created by sending, if the settings allow it."""
        config = self._config
        template = _config(names.AUTO_CREATE_TOPIC, config.default_topic_queues, _READ_WRITE_INHERIT)
        return [template] if config.auto_create_topic else []

    def set_template(self) -> None:
        """Make or remove the template of topics that are created by sending, as the settings now say."""
        template = self._template()
        if not template:
            self.delete(names.AUTO_CREATE_TOPIC)
        elif self.configs.get(names.AUTO_CREATE_TOPIC) != template[0]:
            self.put(template[0])

    def adopt(self, queues: Iterable[tuple[str, int]]) -> None:
        """Add the topics that have queues but no configuration, as after a crash before the table was saved."""
        found: dict[str, int] = {}
        for topic, queue_id in queues:
            if topic not in self.configs and topic != names.OP_HALF_TOPIC:
                found[topic] = max(found.get(topic, 0), queue_id + 1)
        for topic, count in found.items():
            self.put(_config(topic, count))
        if found:
            some = [f"{topic}:{count}" for topic, count in islice(found.items(), _NAMED)]
            LOGGER.warning("topics have queues but no configuration: added topics=%d such as %s", len(found), some)

    def check_room(self, topic: str) -> None:
        """Check that a topic that anybody wants may be created.

        Raises:
            RefusedError: there are too many; the topics that the broker itself needs are created nevertheless.
        """
        self._check_room(topic, self._config.max_topics, "max_topics")

    def create_by_sending(self, topic: str, template_topic: str, queues: int) -> TopicConfig | None:
        """Create an unknown topic from the template that the sender names; ``None`` if that is not allowed.

        Raises:
            IllegalNameError: the name breaks RocketMQ's rules.
            RefusedError: there are too many topics.
        """
        names.validate_topic(topic)
        template = self.configs.get(template_topic)
        if template is not None and template.perm & Permission.INHERIT:
            count = max(0, min(queues, template.write_queue_nums))
            config = _config(topic, count, template.perm & ~int(Permission.INHERIT))
        elif topic.startswith(names.RETRY_PREFIX):
            config = _config(topic, 1)
        else:
            return None
        self.check_room(topic)
        LOGGER.info("topic created by sending topic=%s queues=%d", topic, config.write_queue_nums)
        self.put(config)
        return config

    def ensure(self, topic: str, queues: int, sys_flag: int = 0) -> TopicConfig:
        """Return the topic, created readable and writable with ``queues`` queues if it does not exist.

        A slave creates none: it has the topics of its master only.

        It is the broker's own, or one of the two of a subscription group, so that their number is limited.

        Raises:
            IllegalNameError: it does not exist, and its name breaks RocketMQ's rules.
        """
        config = self.configs.get(topic)
        if config is None:
            names.validate_topic(topic)
            config = _config(topic, queues)
            config.topic_sys_flag = sys_flag
            if not self._config.is_slave:
                self.put(config)
        return config

    def check_changeable(self, topic: str) -> None:
        """Check that clients may change a topic.

        Raises:
            IllegalNameError: the name breaks the rules or belongs to the system.
        """
        names.validate_topic(topic)
        if topic in self.system_topics:
            raise IllegalNameError(f"the topic[{topic}] is conflict with system topic: choose another name")


def _config(topic: str, queues: int, perm: int = _READ_WRITE) -> TopicConfig:
    return TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
