"""Names that RocketMQ has for itself, left out of lists unless they are asked for.

Source: MixAll.java, TopicValidator.java.
"""

from collections.abc import Collection
from typing import Final

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
_REPLY_SUFFIX: Final = "_REPLY_TOPIC"
_TOPICS: Final = frozenset(
    (
        "BenchmarkTest",
        "OFFSET_MOVED_EVENT",
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_wheel_timer",
        "SELF_TEST_TOPIC",
        "TBW102",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    )
)
_TOPIC_PREFIXES: Final = ("RMQ_SYS_", "rmq_sys_")
_GROUPS: Final = frozenset(
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
_GROUP_PREFIXES: Final = ("CID_RMQ_SYS_", "CID_SYS_RMQ_")


def topic_kind(topic: str, cluster_and_broker_names: Collection[str]) -> str:
    """Return ``normal``, ``retry``, ``dead-letter`` or ``system``; clusters and brokers have topics of their name."""
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    if topic.startswith(DEAD_LETTER_PREFIX):
        return "dead-letter"
    is_system = (
        topic in _TOPICS
        or topic.startswith(_TOPIC_PREFIXES)
        or topic.removesuffix(_REPLY_SUFFIX) in cluster_and_broker_names
    )
    return "system" if is_system else "normal"


def is_system_group(group: str) -> bool:
    """Whether every broker has the group."""
    return group in _GROUPS or group.startswith(_GROUP_PREFIXES)
