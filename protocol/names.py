"""Rules for the names of topics and groups, and the names that RocketMQ reserves.

Source: MixAll.java, TopicValidator.java, Validators.java; behaviour.md 0.3 and A.2.
"""

import re
from collections.abc import Collection
from typing import Final

from triomq.protocol.errors import IllegalNameError

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"

#: Its queues and permission are the template for topics that the first send creates.
AUTO_CREATE_TOPIC: Final = "TBW102"
#: Holds the messages that wait for a delay level, one queue for each level.
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
#: Holds the messages that wait for any other time (5.x, and ours).
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
#: Holds the half messages that stayed undecided after the last check.
CHECK_MAX_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
#: Its offsets in the half topic and the operation topic show how far transactions are decided.
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
#: Holds what clients write about the way of their messages.
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
#: Of the name server's key-value table: the queues of topics that are in order across brokers.
ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"

#: Topics that only the broker writes: those of behaviour.md A.2, and the timer's.
FORBIDDEN_TOPICS: Final = frozenset(
    (
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    )
)
_SYSTEM_TOPICS: Final = FORBIDDEN_TOPICS | {AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}
_SYSTEM_TOPIC_PREFIXES: Final = ("RMQ_SYS_", "rmq_sys_")
_SYSTEM_GROUPS: Final = frozenset(
    (
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_PULL",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "TOOLS_CONSUMER",
    )
)
_SYSTEM_GROUP_PREFIXES: Final = ("CID_RMQ_SYS_", "CID_SYS_RMQ_")
_DEFAULT_GROUPS: Final = frozenset(("DEFAULT_PRODUCER", "DEFAULT_CONSUMER"))
_MAX_TOPIC_LENGTH: Final = 127
_MAX_GROUP_LENGTH: Final = 255
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


def retry_topic(group: str) -> str:
    """Return the topic from which a group receives its failed messages again."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic of the messages that a group gave up."""
    return DEAD_LETTER_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Return the topic of a cluster's replies to requests."""
    return f"{cluster}_REPLY_TOPIC"


def system_topics(cluster: str, broker: str) -> frozenset[str]:
    """Return the topics of a broker that administration may neither change nor delete."""
    return _SYSTEM_TOPICS | {cluster, broker, reply_topic(cluster)}


def topic_kind(topic: str, cluster_and_broker_names: Collection[str]) -> str:
    """Return ``normal``, ``retry``, ``dead-letter`` or ``system``; clusters and brokers own topics of their names."""
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    if topic.startswith(DEAD_LETTER_PREFIX):
        return "dead-letter"
    is_system = (
        topic in _SYSTEM_TOPICS
        or topic.startswith(_SYSTEM_TOPIC_PREFIXES)
        or topic.removesuffix(reply_topic("")) in cluster_and_broker_names
    )
    return "system" if is_system else "normal"


def holds_other_topics(topic: str) -> bool:
    """Whether the messages of a topic are those of other topics, traces of them, or replies to other clients."""
    return topic in (SCHEDULE_TOPIC, CHECK_MAX_TOPIC) or (
        topic.startswith(_SYSTEM_TOPIC_PREFIXES) or topic.endswith(reply_topic(""))
    )


def is_system_group(group: str) -> bool:
    """Whether every broker has the group."""
    return group in _SYSTEM_GROUPS or is_broker_group(group)


def is_broker_group(group: str) -> bool:
    """Whether only the broker itself consumes as the group."""
    return group.startswith(_SYSTEM_GROUP_PREFIXES)


def validate_topic(name: str) -> None:
    """Accept a topic name: 1 to 127 letters, digits, ``%``, ``|``, ``-``, ``_``.

    Raises:
        IllegalNameError: the name breaks a rule; the text says which.
    """
    _validate("topic", name, _MAX_TOPIC_LENGTH)


def validate_group(name: str, *, with_retry_topic: bool = False) -> None:
    """Accept a group name: 1 to 255 characters of the same kind, and not a client's default group.

    With a retry topic, whose name is at most 127 characters long, 120 are allowed.  RocketMQ accepts 255, but then no
    failed message can be stored for a later delivery or as a dead letter.

    Raises:
        IllegalNameError: the name breaks a rule; the text says which.
    """
    max_length = _MAX_TOPIC_LENGTH - len(RETRY_PREFIX) if with_retry_topic else _MAX_GROUP_LENGTH
    _validate("group", name, max_length)
    if name in _DEFAULT_GROUPS:
        raise IllegalNameError(f"group {name}: every client has it by default; choose another name")


def _validate(kind: str, name: str, max_length: int) -> None:
    if not name or name.isspace():
        raise IllegalNameError(f"{kind}: the name is blank")
    if len(name) > max_length:
        raise IllegalNameError(f"{kind} {name[:40]!r}...: {len(name)} characters, at most {max_length} are allowed")
    if _NAME.fullmatch(name) is None:
        raise IllegalNameError(f"{kind} {name!r}: only letters, digits, %, |, - and _ are allowed")
