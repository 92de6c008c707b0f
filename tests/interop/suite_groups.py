"""What the administration of groups must do against any broker: states, resets, dead letters."""

from datetime import UTC, datetime

from tests.facades import Admin, LitePullConsumer, PullConsumer, PushConsumer
from tests.interop.suite_tools import (
    Inbox,
    fresh,
    has_route,
    new_topic,
    poll_bodies,
    push_consumer,
    send_all,
    send_numbered,
    until,
)
from triomq.client import ClientConfig, ConsumerConfig, FindingKind, LitePullConfig, Message, MessageExt


async def group_is_shown_with_owners_without_problems(namesrv: str) -> None:
    topic, group, inbox = await new_topic(namesrv), fresh("group"), Inbox()
    async with (
        Admin(namesrv=namesrv) as admin,
        push_consumer(namesrv, topic, inbox.take, group=group),
        push_consumer(namesrv, topic, inbox.take, group=group),
    ):
        await send_numbered(namesrv, topic, "shown", 20)
        await inbox.wait_count(20)

        async def is_shared() -> bool:
            state = await admin.group_state(group, topic)
            owners = [owner for queue in state.queues for owner in queue.owners]
            return len(owners) == 4 and {owners.count(owner) for owner in owners} == {2}

        await until(is_shared)
        state = await admin.group_state(group, topic)
        assert (state.duplicate_client_ids, state.subscription_differences) == ((), ())
        assert [queue.stall for queue in state.queues] == [None] * 4


async def group_without_members_consumes_again_after_reset(namesrv: str) -> None:
    topic, group = await new_topic(namesrv, queues=2), fresh("group")
    bodies = await send_numbered(namesrv, topic, "again", 10)
    for _ in range(2):
        inbox = Inbox()
        async with push_consumer(namesrv, topic, inbox.take, group=group):
            await inbox.wait_count(10)
        assert sorted(inbox.bodies()) == sorted(bodies)
        async with Admin(namesrv=namesrv) as admin:

            async def is_alone() -> bool:
                return not await admin.group_member_ids(group)

            await until(is_alone)
            done = await admin.reset_offsets(group, topic, "earliest")
        assert sorted((change.before, change.after) for change in done.changes) == [(5, 0), (5, 0)]


async def lite_pull_members_resume_from_reset_offset(namesrv: str) -> None:
    """C.2 scenario 61, of members that poll: Java's ignore it."""
    settings = LitePullConfig(suspend_s=2.0)  # brokers of 5.x report it with the next answer to a pull
    for is_assigned in (False, True):
        topic, group = await new_topic(namesrv, queues=2), fresh("group")
        bodies = await send_numbered(namesrv, topic, "again", 10)
        async with (
            Admin(namesrv=namesrv) as admin,
            LitePullConsumer(group, namesrv=namesrv, start="earliest", auto_commit=False, settings=settings) as member,
        ):
            queues = await member.queues(topic)
            await (member.assign(queues) if is_assigned else member.subscribe(topic))
            assert sorted(await poll_bodies(member, 10)) == sorted(bodies)
            await member.commit()
            done = await admin.reset_offsets(group, topic, "earliest")
            assert done.is_online
            assert sorted(await poll_bodies(member, 10)) == sorted(bodies)
            assert [await member.committed(queue) for queue in queues] == [0, 0]  # nothing was committed since
        async with PullConsumer(group, namesrv=namesrv) as pull:
            assert [await pull.committed(queue) for queue in queues] == [0, 0]


async def dead_letters_go_back_to_their_topic(namesrv: str) -> None:
    topic, group = await new_topic(namesrv, queues=1), fresh("group")

    async def refuse(_message: MessageExt) -> None:
        raise ValueError("refused")

    await send_all(namesrv, [Message(topic, b"dead", tags="t", keys=["k"], properties={"color": "red"})])
    async with Admin(namesrv=namesrv) as admin:
        async with push_consumer(namesrv, topic, refuse, group=group, settings=ConsumerConfig(max_reconsume_times=0)):

            async def is_dead() -> bool:
                return len(await admin.dead_letters(group)) == 1

            await until(is_dead)
        assert [letter.original_topic for letter in await admin.dead_letters(group)] == [topic]
        assert await admin.redrive(group, dry_run=True) == (1, 0, 0)
        assert await admin.redrive(group) == (1, 0, 0)
        assert await admin.redrive(group) == (0, 0, 0)
    inbox = Inbox()
    async with push_consumer(namesrv, topic, inbox.take):
        await inbox.wait_count(2)
    for message in inbox.messages:
        assert (message.body, message.tags, message.keys) == (b"dead", "t", ("k",))
        assert message.user_properties == {"color": "red"}
        assert "RETRY_TOPIC" not in message.properties


async def a_time_span_is_replayed_into_another_group(namesrv: str) -> None:
    topic, group, into, other = await new_topic(namesrv), fresh("group"), fresh("into"), fresh("other")
    first, second, third = Inbox(), Inbox(), Inbox()

    def member(group: str, inbox: Inbox, tags: str) -> PushConsumer:
        return push_consumer(namesrv, topic, inbox.take, group=group, tags=tags)

    messages = [
        Message(topic, b"%d" % number, tags="ab"[number % 2], keys=["k"], properties={"color": "red"})
        for number in range(20)
    ]
    await send_all(namesrv, messages)
    async with (
        Admin(namesrv=namesrv) as admin,
        member(group, first, "a"),
        member(into, second, "none"),
        member(other, third, "*"),
    ):
        await first.wait_count(10)
        await third.wait_count(20)
        await until(lambda: has_route(admin, f"%RETRY%{into}"))
        wanted = sorted(first.messages, key=lambda message: int(message.body))[2:8]
        begin, end = (datetime.fromtimestamp(wanted[at].store_timestamp / 1000, UTC) for at in (0, -1))
        in_span = [one for one in first.messages if begin.timestamp() <= one.store_timestamp / 1000 <= end.timestamp()]
        plan = await admin.plan_replay(group, into, begin, end)
        assert await admin.replay(plan, speed=None) == len(in_span) >= 6
        await second.wait_count(len(in_span))
        copies = {message.body: message for message in second.messages}
        for message in in_span:
            copy = copies.pop(message.body)
            names = ("topic", "tags", "keys", "message_id", "user_properties", "born_timestamp", "reconsume_times")
            assert [getattr(copy, name) for name in names] == [getattr(message, name) for name in names]
        assert (copies, len(first.messages), len(third.messages)) == ({}, 10, 20)


async def the_doctor_names_faults_of_groups(namesrv: str) -> None:
    kept, gone = await new_topic(namesrv), await new_topic(namesrv)
    doubled, different = fresh("doubled"), fresh("different")

    def member(group: str, name: str, subscriptions: dict[str, str]) -> PushConsumer:
        config, inbox = ClientConfig(instance_name=f"{group}-{name}"), Inbox()
        return PushConsumer(
            group, namesrv=namesrv, config=config, on_message=inbox.take, subscriptions=subscriptions, start="earliest"
        )

    async with (
        Admin(namesrv=namesrv) as admin,
        member(doubled, "same", {kept: "*"}),
        member(doubled, "same", {kept: "*"}),
        member(different, "one", {kept: "x", gone: "*"}),
        member(different, "two", {kept: "y", gone: "*"}),
    ):

        async def are_online() -> bool:
            members = [len((await admin.group_members(group)).connection_set) for group in (doubled, different)]
            return members == [2, 2]

        await until(are_online)

        async def are_named() -> bool:  # each broker hears of a member by itself
            if await has_route(admin, gone):  # also if an earlier registration of Apache's broker brought it back
                await admin.delete_topic(gone)
            findings = (await admin.diagnose()).findings
            kinds = [
                [(each.kind.value, each.topic) for each in findings if each.group == group]
                for group in (doubled, different)
            ]
            return kinds == [
                [("duplicate-client-id", None)],
                [("different-subscriptions", kept), ("missing-topic", gone)],
            ]

        await until(are_named)
        found = await admin.diagnose()
        of_brokers = {each.kind for each in found.findings if each.broker is not None}
        assert of_brokers <= {FindingKind.DISK}  # the disk may be full of other things
