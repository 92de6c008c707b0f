"""Administration of consumer groups: settings, members, lag, offsets, dead letters.

Source: wire.md 7, behaviour.md A.15.
"""

from collections.abc import Callable

from triomq.client.admin import dead_letters, offset_reset
from triomq.client.admin.admin_cluster import ClusterAdmin
from triomq.client.admin.dead_letters import DeadLetter, DeadLetterCount, Redrive
from triomq.client.admin.group_state import GroupLag, GroupState, read_group_state
from triomq.client.admin.offset_reset import OffsetReset
from triomq.client.consumer.config import Start
from triomq.protocol.bodies.client import ConsumerIdList
from triomq.protocol.bodies.route import SubscriptionGroupConfig, SubscriptionGroupWrapper
from triomq.protocol.bodies.statistics import ConsumerConnection, ConsumeStats
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import ConsumerNotOnlineError, TopicNotExistError
from triomq.protocol.names import DEAD_LETTER_PREFIX, validate_group
from triomq.protocol.record.message import MessageExt
from triomq.protocol.requests.groups import ConsumerGroupRequestHeader, DeleteSubscriptionGroupRequestHeader
from triomq.protocol.requests.offsets import GetConsumeStatsRequestHeader


class GroupAdmin(ClusterAdmin):
    """The methods of :class:`triomq.client.admin.admin.Admin` for consumer groups."""

    async def groups(self) -> list[str]:
        """Return the names of all consumer groups with settings on a broker, sorted."""
        return sorted(await self.group_configs())

    async def group_configs(self) -> dict[str, SubscriptionGroupConfig]:
        """Return the settings of all consumer groups; if several brokers have a group, those of the last by name."""
        found: dict[str, SubscriptionGroupConfig] = {}
        for address in await self._masters():
            response = await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            found.update(SubscriptionGroupWrapper.decode(response.body).subscription_group_table)
        return found

    async def create_group(self, config: SubscriptionGroupConfig, *, cluster: str | None = None) -> None:
        """Create or change a consumer group on all masters (of a cluster).

        Raises:
            IllegalNameError: the name is not valid.
        """
        validate_group(config.group_name)
        body = config.encode()
        for address in await self._masters(cluster):
            await self._ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    async def delete_group(self, group: str, *, remove_offsets: bool = True) -> None:
        """Delete a consumer group on all masters, by default with its offsets."""
        header = DeleteSubscriptionGroupRequestHeader(group, remove_offsets, remove_offsets)
        for address in await self._masters():
            await self._ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def group_lag(self, group: str, topic: str | None = None) -> list[GroupLag]:
        """Return the progress of a group in each queue, sorted by queue; empty if it never committed an offset.

        Args:
            group: name of the group.
            topic: only this topic.
        """
        rows = []
        for address in await self._masters():
            header = GetConsumeStatsRequestHeader(group, topic)
            try:
                response = await self._ask(address, RequestCode.GET_CONSUME_STATS, header)
            except TopicNotExistError:  # not on this broker
                continue
            for queue, found in ConsumeStats.decode(response.body).offset_table.items():
                lag = max(0, found.broker_offset - found.consumer_offset)
                rows.append(
                    GroupLag(
                        queue,
                        found.broker_offset,
                        found.consumer_offset,
                        lag,
                        found.last_timestamp,
                        found.lock_owner,
                        found.progress_timestamp,
                        found.stalled_timestamp,
                    )
                )
        return sorted(rows)

    async def group_members(self, group: str) -> ConsumerConnection:
        """Return the connections of a consumer group to all brokers, and their subscriptions.

        Raises:
            ConsumerNotOnlineError: the group has no member online.
        """
        merged: ConsumerConnection | None = None
        for address in await self._masters():
            header = ConsumerGroupRequestHeader(group)
            try:
                response = await self._ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
            except ConsumerNotOnlineError:
                continue
            found = ConsumerConnection.decode(response.body)
            if merged is None:
                merged = found
            else:
                known = {connection.client_id for connection in merged.connection_set}
                merged.connection_set += [one for one in found.connection_set if one.client_id not in known]
                merged.subscription_table |= found.subscription_table
        if merged is None:
            raise ConsumerNotOnlineError(int(ResponseCode.CONSUMER_NOT_ONLINE), f"group {group!r} has no member online")
        return merged

    async def group_member_ids(self, group: str) -> list[str]:
        """Return the client ids of the members of a consumer group, sorted as its members sort them."""
        ids: set[str] = set()
        for address in await self._masters():
            instance = self._entered()
            command = instance.requests.command(
                RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupRequestHeader(group)
            )
            response = await instance.requests.invoke(address, command)
            if response.code == ResponseCode.SUCCESS:  # other codes: the group has none
                ids.update(ConsumerIdList.decode(response.body).consumer_id_list)
        return sorted(ids)

    async def group_state(self, group: str, topic: str | None = None) -> GroupState:
        """Return the members of a group, the owner of each queue, and problems; asks each member for its state.

        Args:
            group: name of the group.
            topic: only the queues of this topic.
        """
        lags = await self.group_lag(group, topic)
        try:
            members = await self.group_members(group)
        except ConsumerNotOnlineError:
            members = None
        if topic is None and members is not None:  # brokers return only topics with offsets
            told = {row.queue.topic for row in lags}
            for subscribed in sorted(members.subscription_table.keys() - told):
                lags += await self.group_lag(group, subscribed)
        config = (await self.group_configs()).get(group)
        return await read_group_state(
            self._entered(),
            await self._masters(),
            group,
            lags=sorted(lags),
            members=members,
            consume_enabled=config is None or config.consume_enable,
        )

    async def reset_offsets(self, group: str, topic: str, to: Start, *, dry_run: bool = False) -> OffsetReset:
        """Set the offsets of a group in a topic; members that are online follow within about 10 s.

        Args:
            group: name of the group.
            topic: name of the topic.
            to: ``"earliest"``, ``"latest"``, or the store time of the first message wanted.
            dry_run: only return what would change.

        Raises:
            ConfigError: ``to`` is something else.
            NoRouteError: the topic does not exist.
        """
        validate_group(group)
        instance = self._entered()
        is_online = bool(await self.group_member_ids(group))
        changes = await offset_reset.plan_reset(instance, group, topic, to, is_online=is_online)
        if not dry_run:
            await offset_reset.carry_out(instance, group, changes, to)
        return OffsetReset(changes, is_online)

    async def dead_letter_counts(self) -> list[DeadLetterCount]:
        """Return the number of dead letters of each group that ever had any, sorted by group."""
        instance, prefix = self._entered(), DEAD_LETTER_PREFIX
        groups = [topic.removeprefix(prefix) for topic in await instance.routes.topics() if topic.startswith(prefix)]
        return [await dead_letters.count_dead_letters(instance, group) for group in groups]

    async def dead_letters(self, group: str, limit: int = 100) -> list[DeadLetter]:
        """Return the oldest dead letters of a group; none if the group is unknown.

        Raises:
            ClientError: their topic is not readable.
        """
        return await dead_letters.read_dead_letters(self._entered(), group, limit)

    async def redrive(
        self,
        group: str,
        *,
        limit: int | None = None,
        again: bool = False,
        dry_run: bool = False,
        on_sent: Callable[[MessageExt], None] = lambda _message: None,
    ) -> Redrive:
        """Send the dead letters of a group back to their original topics, oldest first.

        A cancelled call still records its progress; the message in flight may be sent twice.

        Args:
            group: name of the group.
            limit: maximum number of messages; ``None``: all.
            again: include those that were sent back before.
            dry_run: send nothing.
            on_sent: called with each message that was, or would be, sent back.

        Raises:
            NoRouteError: an original topic no longer exists; messages before this one were sent back.
            ClientError: the topic of the dead letters is not readable.
        """
        return await dead_letters.redrive(
            self._entered(), group, limit=limit, again=again, dry_run=dry_run, on_sent=on_sent
        )
