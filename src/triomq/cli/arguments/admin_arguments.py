"""The options of the commands about topics and consumer groups."""

from triomq.cli.arguments import values
from triomq.cli.arguments.parser import Commands, add_client_command, add_subcommands


def add_topic(commands: Commands) -> None:
    """Add ``triomq topic`` with its commands."""
    topic = add_subcommands(commands, "topic", "list, create, delete or show topics")
    listing = add_client_command(topic, "list", "topic:list_topics", "TopicListOptions", "list the topics")
    listing.add_argument("--all", action="store_true", help="also those that brokers and groups have for themselves")
    create = add_client_command(topic, "create", "topic:create", "TopicCreateOptions", "create or change a topic")
    create.add_argument("topic", metavar="TOPIC")
    create.add_argument("--queues", type=values.parse_positive, metavar="N", default=4, help="queues per broker (4)")
    create.add_argument(
        "--permission", choices=("rw", "r", "w"), default="rw", help="what is allowed: read, write or both (perm; rw)"
    )
    delete = add_client_command(topic, "delete", "topic:delete", "TopicDeleteOptions", "delete a topic everywhere")
    delete.add_argument("topic", metavar="TOPIC")
    for parser in (create, delete):
        parser.add_argument("--dry-run", action="store_true", help="only print what would be done")
    show = add_client_command(topic, "show", "topic:show", "TopicShowOptions", "show a topic's queues and offsets")
    show.add_argument("topic", metavar="TOPIC")


def add_group(commands: Commands) -> None:
    """Add ``triomq group`` with its commands."""
    group = add_subcommands(commands, "group", "list, create, delete, show or reset consumer groups")
    listing = add_client_command(group, "list", "group:list_groups", "GroupListOptions", "list the consumer groups")
    listing.add_argument("--all", action="store_true", help="also those that every broker has")
    show = add_client_command(
        group, "show", "group:show", "GroupShowOptions", "show members, offsets and lag of a group"
    )
    show.add_argument("group", metavar="GROUP")
    show.add_argument("--topic", help="only this topic")
    _add_group_changes(group)


def _add_group_changes(group: Commands) -> None:
    create = add_client_command(group, "create", "group:create", "GroupCreateOptions", "create or change a group")
    create.add_argument("group", metavar="GROUP")
    create.add_argument(
        "--retries",
        type=values.parse_count,
        metavar="N",
        default=16,
        help="how often a message may fail before it becomes a dead letter (retryMaxTimes; 16)",
    )
    create.add_argument("--disable", action="store_true", help="forbid the group to consume (consumeEnable)")
    delete = add_client_command(group, "delete", "group:delete", "GroupDeleteOptions", "delete a group everywhere")
    delete.add_argument("group", metavar="GROUP")
    delete.add_argument("--keep-offsets", action="store_true", help="keep its committed offsets")
    for parser in (create, delete):
        parser.add_argument("--dry-run", action="store_true", help="only print what would be done")
    reset = add_client_command(
        group,
        "reset-offset",
        "group:reset_offset",
        "GroupResetOffsetOptions",
        "make a group consume a topic from another offset, whether its members are online or not",
    )
    reset.add_argument("group", metavar="GROUP")
    reset.add_argument("--topic", required=True, help="which of its topics")
    reset.add_argument(
        "--to",
        metavar="WHERE",
        type=values.parse_start,
        required=True,
        help="earliest, latest, a time, or -10m for ten minutes ago",
    )
    reset.add_argument("--dry-run", action="store_true", help="only print what would be done")
