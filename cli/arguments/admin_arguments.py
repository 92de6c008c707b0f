"""The options of the commands about topics and consumer groups."""

from functools import partial
from typing import Final

from triomq.cli.arguments import values
from triomq.cli.arguments.parser import Commands, Parser, add_client_command, add_option, add_subcommands

UPDATE_TEXT: Final = (
    "Change what is named of a topic; the rest stays as it is on each broker.  Messages in queues that are not read are"
    " not consumed: for fewer queues, lower --write-queues first, and --read-queues once the others are consumed."
)

REPLAY_TEXT: Final = (
    "Deliver what the topics of a group hold of a time span again, to another group alone.  The messages go through the"
    " retry topic of that group, oldest first; no offset changes.  Each run delivers them once more."
)


def add_topic(commands: Commands) -> None:
    """Add ``triomq topic`` with its commands."""
    topic = add_subcommands(commands, "topic", "list, create, update, delete or show topics")
    listing = add_client_command(topic, "list", "topic:list_topics", "ListOptions", "list the topics")
    add_option(listing, "--all", "also those that brokers and groups have for themselves")
    create = add_client_command(
        topic, "create", "topic:create", "TopicCreateOptions", "create a topic where it is missing"
    )
    add_option(create, "TOPIC")
    add_option(create, "--queues N", "queues per broker (4)")
    add_option(create, "--permission rw|r|w", "what is allowed: read, write or both (perm; rw)")
    update = add_client_command(topic, "update", "topic:update", "TopicUpdateOptions", "change settings of a topic")
    update.description = UPDATE_TEXT
    add = partial(add_option, update)
    add("TOPIC")
    add("--queues N", "read and write queues per broker")
    add("--read-queues N", "queues that consumers read; lower it after --write-queues, once the others are consumed")
    add("--write-queues N", "queues that producers send to; lower it first")
    add("--permission rw|r|w", "what is allowed: read, write or both (perm)")
    add("--order yes|no", "whether it is an order topic; RocketMQ 4.9 and triomq do not keep it")
    text = "messages that brokers of RocketMQ 5 accept (message.type); others do not keep it"
    add("--type normal|fifo|delay|transaction|mixed", text)
    add("--broker NAME", "only on this broker (all that have the topic)")
    add("--force", "lower the number of read queues even if that hides messages from consumers")
    delete = add_client_command(topic, "delete", "topic:delete", "TopicDeleteOptions", "delete a topic everywhere")
    add_option(delete, "TOPIC")
    for parser in (create, update, delete):
        add_option(parser, "--dry-run", "only print what would be done")
    show = add_client_command(topic, "show", "topic:show", "TopicShowOptions", "show a topic's queues and offsets")
    add_option(show, "TOPIC")


def add_group(commands: Commands) -> None:
    """Add ``triomq group`` with its commands."""
    group = add_subcommands(commands, "group", "list, create, delete, show, reset or replay consumer groups")
    listing = add_client_command(group, "list", "group:list_groups", "ListOptions", "list the consumer groups")
    add_option(listing, "--all", "also those that every broker has")
    text = "show members, offsets and lag of a group"
    show = add_client_command(group, "show", "group:show", "GroupShowOptions", text)
    add_option(show, "GROUP")
    add_option(show, "--topic TOPIC", "only this topic")
    create = add_client_command(group, "create", "group:create", "GroupCreateOptions", "create or change a group")
    add_option(create, "GROUP")
    text = "how often a message may fail before it becomes a dead letter (retryMaxTimes; 16)"
    add_option(create, "--retries N", text, read=values.parse_count)
    consume = create.add_mutually_exclusive_group()
    settings = {"action": "store_const", "dest": "consume"}
    add_option(consume, "--disable", "forbid the group to consume (consumeEnable)", const="no", **settings)
    add_option(consume, "--enable", "allow it again", const="yes", **settings)
    delete = add_client_command(group, "delete", "group:delete", "GroupDeleteOptions", "delete a group everywhere")
    add_option(delete, "GROUP")
    add_option(delete, "--keep-offsets", "keep its committed offsets")
    add_option(delete, "--force", "delete it even if it has members online")
    text = "make a group consume a topic from another offset, whether its members are online or not"
    reset = add_client_command(group, "reset-offset", "group:reset_offset", "GroupResetOffsetOptions", text)
    add_option(reset, "GROUP")
    add_option(reset, "--topic TOPIC", "which of its topics", required=True)
    add_option(reset, "--to WHERE", "earliest, latest, a time, or -10m for ten minutes ago", required=True)
    replay = _add_replay(group)
    for parser in (create, delete, reset, replay):
        add_option(parser, "--dry-run", "only print what would be done")


def _add_replay(group: Commands) -> Parser:
    text = "deliver what the topics of a group hold of a time span again, to another group alone"
    replay = add_client_command(group, "replay", "group_replay:run", "GroupReplayOptions", text)
    replay.description = REPLAY_TEXT
    add = partial(add_option, replay)
    add("GROUP")
    add("--into GROUP", "the group that gets the messages", required=True)
    add("--from TIME", "stored at this time or later: 2026-01-31T12:00, or -10m", required=True, dest="begin")
    add("--to TIME", "stored at this time or earlier (now)", dest="end")
    text = "2 is twice as fast as they were stored; max or 0: as fast as possible (1)"
    add("--speed X", text, 1.0, read=values.parse_speed)
    add("--topic TOPIC...", "only this topic, may be repeated (all that the group subscribes to)")
    return replay


def add_acl(commands: Commands) -> None:
    """Add ``triomq acl`` with its commands."""
    acl = add_subcommands(commands, "acl", "list, set, delete or check the accounts of running brokers")
    listing = add_client_command(acl, "list", "acl:list_accounts", "AclListOptions", "list the accounts")
    change = add_client_command(acl, "set", "acl:set_one", "AclSetOptions", "add or change an account")
    delete = add_client_command(acl, "delete", "acl:delete", "AclDeleteOptions", "delete an account")
    text = "show what an account may do, and why"
    check = add_client_command(acl, "check", "acl:check", "AclCheckOptions", text)
    for parser in (change, delete, check):
        add_option(parser, "KEY", "access key of the account")
    for parser in (listing, change, delete, check):
        add_option(parser, "--broker HOST:PORT", "only this broker (all in the name server)")
    text = "its secret, with the lines accessKey: ... and secretKey: ... of --credentials: env:NAME or file:PATH"
    add_option(change, "--secret SOURCE", text)
    add_option(change, "--admin yes|no", "whether it may administer (no for a new account)")
    add_option(change, "--address PATTERN", "addresses from which its name is enough for everything")
    text = "its right for topics that it has no entry for: DENY, PUB, SUB or PUB|SUB"
    add_option(change, "--topic-default RIGHT", text)
    add_option(change, "--group-default RIGHT", "its right for groups that it has no entry for")
    add_option(change, "--topic TOPIC=RIGHT...", "right for a topic; those given replace all it had; may be repeated")
    add_option(change, "--group GROUP=RIGHT...", "right for a group; those given replace all it had; may be repeated")
    add_option(check, "--topic TOPIC", "sending to this topic, and reading it")
    add_option(check, "--group GROUP", "consuming as this group")
