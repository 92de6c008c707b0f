"""Administration of topics, groups, tables and settings.

Source: behaviour.md A.15; wire.md 7, 9.7, 14; AdminBrokerProcessor.java.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from triomq.broker.config import MAX_QUEUES
from triomq.broker.delayed.levels import ScheduledDelivery
from triomq.broker.groups.groups import check_changeable
from triomq.broker.network.connection import Connection
from triomq.broker.processors.pull import PullAnswers
from triomq.broker.services.housekeeping import RetentionService
from triomq.broker.services.registration import Registration
from triomq.broker.shared import BrokerPart
from triomq.broker.work import Answer, encode
from triomq.protocol.bodies import fastjson
from triomq.protocol.bodies import route as bodies
from triomq.protocol.bodies.statistics import QuerySubscriptionBody
from triomq.protocol.codes import Permission, ResponseCode
from triomq.protocol.errors import RefusedError, StoreError
from triomq.protocol.names import validate_group
from triomq.protocol.requests import groups, topics
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.reading.cold_read import PAUSE, Work

LOGGER: Final = logging.getLogger("triomq.broker.processors.admin")

_ALL_PERMISSIONS: Final = int(Permission.INHERIT | Permission.WRITE | Permission.READ | Permission.PRIORITY)


@dataclass(slots=True, eq=False)
class AdminProcessors(BrokerPart):
    """Creates, deletes and lists topics and groups; serves tables to slaves, and requests to clean the store."""

    pulls: PullAnswers
    registration: Registration
    delayed: ScheduledDelivery
    retention: RetentionService

    def update_and_create_topic(self, connection: Connection, command: RemotingCommand) -> Work[Answer]:
        """Create a topic or replace its configuration; its messages stay.

        The ``order`` field is ignored, as in RocketMQ 4.9.7.
        """
        header = topics.CreateTopicRequestHeader.decode(command.ext_fields)
        filter_type = bodies.TopicFilterType.__members__.get(header.topic_filter_type)
        if filter_type is None:
            raise RefusedError(f"topicFilterType[{header.topic_filter_type}] is illegal: SINGLE_TAG or MULTI_TAG")
        config = bodies.TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=filter_type,
            topic_sys_flag=header.topic_sys_flag,
        )
        return self._put_topics(connection, command, [config])

    def update_and_create_topic_list(self, connection: Connection, command: RemotingCommand) -> Work[Answer]:
        """Create several topics or replace their configurations; all are checked before the first is set."""
        configs = bodies.TopicConfigList.decode(command.body).topic_config_list
        configs = [replace(config, order=False, attributes=None) for config in configs]
        return self._put_topics(connection, command, configs)

    def _put_topics(
        self, connection: Connection, command: RemotingCommand, configs: Collection[bodies.TopicConfig]
    ) -> Work[Answer]:
        for config in configs:
            self._check_topic(config)
            yield PAUSE
        for config in configs:
            self.topics.check_room(config.topic_name)  # others may have been created meanwhile
            self.topics.put(config)
            LOGGER.info(
                "topic set topic=%s read_queues=%d write_queues=%d perm=%d peer=%s",
                config.topic_name, config.read_queue_nums, config.write_queue_nums, config.perm, connection.peer,
            )  # fmt: skip
            yield PAUSE
        return self.registration.answer_later(connection, command, *(config.topic_name for config in configs))

    def _check_topic(self, config: bodies.TopicConfig) -> None:
        name = config.topic_name
        self.topics.check_changeable(name)
        self.topics.check_room(name)
        for setting, count in (("readQueueNums", config.read_queue_nums), ("writeQueueNums", config.write_queue_nums)):
            _check_range(f"{setting} of topic[{name}]", count, MAX_QUEUES)
        _check_range(f"perm of topic[{name}]", config.perm, _ALL_PERMISSIONS)

    def delete_topic_in_broker(self, connection: Connection, command: RemotingCommand) -> Work[Answer]:
        """Delete a topic with its queues and offsets."""
        topic = topics.TopicRequestHeader.decode(command.ext_fields).topic
        return self._delete_topics(connection, command, [topic])

    def delete_topic_in_broker_list(self, connection: Connection, command: RemotingCommand) -> Work[Answer]:
        """Delete several topics; all names are checked before the first is deleted."""
        return self._delete_topics(connection, command, bodies.TopicList.decode(command.body).topic_list)

    def _delete_topics(self, connection: Connection, command: RemotingCommand, topics: Collection[str]) -> Work[Answer]:
        for topic in topics:
            self.topics.check_changeable(topic)
        for topic in topics:
            yield from self.deletion(topic)
            LOGGER.info("topic deleted topic=%s peer=%s", topic, connection.peer)
        return self.registration.answer_later(connection, command, *topics)

    def deletion(self, topic: str) -> Work[None]:
        """Delete a topic with its queues and offsets; pulls that wait for its messages are answered.

        Unlike in RocketMQ the offsets are deleted too: in a new topic of this name they would hide the first messages.

        Raises:
            StoreError: as ``MessageStore.deletion``.
        """
        queues = self.store.queues.of_topic(topic)
        try:
            # First, because the disk may refuse it.
            yield from self.store.deletion(topic, exists=self.topics.get(topic) is not None)
        except StoreError:
            if not any(queue.max_offset for queue in queues):  # files remain, but no messages
                yield from self.groups.offsets.delete_topic(topic)
            raise
        self.topics.delete(topic)
        yield from self.groups.offsets.delete_topic(topic)
        self.statistics.forget_topic(topic)
        self.groups.former.topic_deleted(topic)
        for queue in queues:
            self.pulls.forget_queue(queue, f"topic[{topic}] not exist, apply first please!")

    def get_all_topic_config(self, _connection: Connection, command: RemotingCommand) -> Work[Answer]:
        """Answer with all topics."""
        return command.reply(body=(yield from encode(self.topics.copy())))

    def get_topic_config(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with one topic's configuration, as 5.x tools request it."""
        topic = topics.TopicRequestHeader.decode(command.ext_fields).topic
        config = self.topics.get(topic)
        if config is None:
            raise RefusedError(f"No topic in this broker. topic: {topic}", ResponseCode.TOPIC_NOT_EXIST)
        return command.reply(body=fastjson.dumps({"attributes": {}, **config.to_json()}))

    def get_system_topic_list_from_broker(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with the system topics."""
        names = sorted(self.topics.system_topics)
        return command.reply(body=bodies.TopicList(names, broker_addr=connection.advertised).encode())

    def update_and_create_subscriptiongroup(self, connection: Connection, command: RemotingCommand) -> Work[Answer]:
        """Create a subscription group or replace its configuration."""
        return self._put_groups(connection, command, [bodies.SubscriptionGroupConfig.decode(command.body)])

    def update_and_create_subscriptiongroup_list(
        self, connection: Connection, command: RemotingCommand
    ) -> Work[Answer]:
        """Create several subscription groups or replace them; all are checked before the first is set."""
        return self._put_groups(connection, command, bodies.GroupConfigList.decode(command.body).group_config_list)

    def _put_groups(
        self, connection: Connection, command: RemotingCommand, configs: Collection[bodies.SubscriptionGroupConfig]
    ) -> Work[Answer]:
        settings = self.groups.settings
        for config in configs:
            name = config.group_name
            settings.check_new(name)
            validate_group(name, with_retry_topic=settings.get(name) is None)
            _check_range(f"retryQueueNums of group[{name}]", config.retry_queue_nums, MAX_QUEUES)
            yield PAUSE
        for config in configs:
            settings.check_new(config.group_name)  # others may have been created meanwhile
            settings.put(config)
            LOGGER.info("subscription group set group=%s peer=%s", config.group_name, connection.peer)
            yield PAUSE
        return command.reply()

    def get_all_subscriptiongroup_config(self, _connection: Connection, command: RemotingCommand) -> Work[Answer]:
        """Answer with all subscription groups."""
        return command.reply(body=(yield from encode(self.groups.settings.copy())))

    def get_subscriptiongroup_config(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with one group's configuration, as 5.x tools request it."""
        group = groups.GroupRequestHeader.decode(command.ext_fields).group
        config = self.groups.settings.get(group)
        if config is None:
            raise RefusedError(f"No group in this broker. group: {group}", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        return command.reply(body=config.encode())

    def query_topics_by_consumer(self, connection: Connection, command: RemotingCommand) -> Work[Answer]:
        """Answer with the topics that a group subscribes to now or has offsets in."""
        name = groups.GroupRequestHeader.decode(command.ext_fields).group
        group = self.groups.consumers.get(name)
        found = set() if group is None else set(group.subscriptions)
        found.update((yield from self.groups.offsets.of_group(name)))
        return command.reply(body=bodies.TopicList(sorted(found), broker_addr=connection.advertised).encode())

    def query_subscription_by_consumer(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with the subscription of a group to a topic, without one if its members have none."""
        header = groups.QuerySubscriptionRequestHeader.decode(command.ext_fields)
        group = self.groups.consumers.get(header.group)
        found = None if group is None else group.subscriptions.get(header.topic)
        data = None if found is None else found.data.with_tags()
        return command.reply(body=QuerySubscriptionBody(data, group=header.group, topic=header.topic).encode())

    def delete_subscriptiongroup(self, connection: Connection, command: RemotingCommand) -> Work[Answer]:
        """Delete a subscription group, and its offsets if requested; a live member creates it again."""
        header = groups.DeleteSubscriptionGroupRequestHeader.decode(command.ext_fields)
        with_offsets = header.remove_offset or header.clean_offset
        return self._delete_groups(connection, command, [header.group_name], with_offsets=with_offsets)

    def delete_subscription_group_list(self, connection: Connection, command: RemotingCommand) -> Work[Answer]:
        """Delete several subscription groups; all names are checked before the first is deleted."""
        wanted = bodies.GroupNameList.decode(command.body)
        return self._delete_groups(connection, command, wanted.group_name_list, with_offsets=wanted.clean_offset)

    def _delete_groups(
        self, connection: Connection, command: RemotingCommand, names: Collection[str], *, with_offsets: bool
    ) -> Work[Answer]:
        for name in names:
            check_changeable(name)
        for name in names:
            self.groups.settings.delete(name)
            self.statistics.forget_group(name)
            if with_offsets:
                yield from self.groups.offsets.delete_group(name)
            LOGGER.info("subscription group deleted group=%s peer=%s", name, connection.peer)
            yield PAUSE
        return command.reply()

    def get_all_consumer_offset(self, _connection: Connection, command: RemotingCommand) -> Work[Answer]:
        """Answer with all stored offsets, as slaves copy them."""
        table = yield from self.groups.offsets.copy()
        return command.reply(body=(yield from encode(table)))

    def get_all_delay_offset(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with the progress of all delay levels, as slaves copy it.

        Slaves of triomq need that of timed messages, too, and the end of the log that holds all delivered messages.
        """
        delayed = self.delayed
        fields = {"timerProgress": bytes(fastjson.dumps(delayed.timer.progress.to_json())).decode()}
        fields["logEnd"] = str(self.store.commit_log.max_offset)
        return command.reply(ext_fields=fields, body=fastjson.dumps(delayed.schedule.offsets.to_json()))

    def delete_expired_commitlog(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Delete expired commit log files soon, whatever the hour."""
        self.retention.request()
        LOGGER.info("deletion of old files requested peer=%s", connection.peer)
        return command.reply()

    def clean_expired_consumequeue(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Succeed without an effect.

        Each run that deletes commit log files also cleans the queues, and those of a topic are deleted with it.
        """
        return command.reply()

    clean_unused_topic = clean_expired_consumequeue


def _check_range(what: str, value: int, limit: int) -> None:
    if not 0 <= value <= limit:
        raise RefusedError(f"{what} is illegal: {value}, must be 0 to {limit}")
