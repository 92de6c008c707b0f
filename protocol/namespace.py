"""Namespaces: name prefixes that keep the topics and groups of several tenants of one cluster apart.

Clients know bare names, brokers know names with the prefix.  A client translates where it sends and receives.

Source: NamespaceUtil.java, behaviour.md B.4.
"""

import re
from collections.abc import Iterable
from typing import Final

from triomq.protocol.errors import IllegalNameError
from triomq.protocol.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_group, reply_topic, topic_kind
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import PropertyName

_ALLOWED: Final = re.compile(r"[a-zA-Z0-9_|-]{1,60}")
_SPECIAL: Final = (RETRY_PREFIX, DEAD_LETTER_PREFIX)
#: The group under which every client sends failed messages again.  Source: MixAll.java.
_INNER_PRODUCER: Final = "CLIENT_INNER_PRODUCER"
#: Header fields that hold a topic or a group; ``a`` and ``b`` are those of the short form.
_FIELDS: Final = frozenset(
    ("topic", "b", "group", "a", "consumerGroup", "producerGroup", "groupName", "originTopic", "srcGroup", "destGroup")
)
_JSON_NAME: Final = re.compile(rb'("(?:topic|groupName|consumerGroup)":")([^"]+)')


class Namespace:
    """The prefix of one namespace; without a name it changes nothing.

    ``wrap`` turns ``orders`` into ``NAME%orders`` and ``%RETRY%group`` into ``%RETRY%NAME%group``.  System topics and
    groups, and names that have the prefix, stay as they are.
    """

    __slots__ = ("_prefix", "_prefixed", "name")

    def __init__(self, name: str | None = None) -> None:
        """Take the name of the namespace.

        Raises:
            IllegalNameError: other characters than letters, digits, ``-``, ``_`` and ``|``, or more than 60.
        """
        if name and not _ALLOWED.fullmatch(name):
            raise IllegalNameError(f"namespace {name[:80]!r}: only 1 to 60 letters, digits, -, _ and | are allowed")
        self.name: Final = name or ""
        self._prefix: Final = f"{name}%"
        self._prefixed: Final = re.compile(rb'(["@](?:%RETRY%|%DLQ%)?)' + re.escape(self._prefix.encode()))

    def __bool__(self) -> bool:
        return bool(self.name)

    def wrap(self, name: str) -> str:
        """Return a topic or group as brokers know it."""
        if not self.name or not name or _is_system(name):
            return name
        special, bare = _split(name)
        return name if bare.startswith(self._prefix) else f"{special}{self._prefix}{bare}"

    def unwrap(self, name: str) -> str:
        """Return a topic or group as users know it; names of other namespaces stay as they are."""
        if not self.name or _is_system(name):
            return name
        special, bare = _split(name)
        return special + bare.removeprefix(self._prefix)

    def wrap_fields(self, fields: dict[str, str]) -> dict[str, str]:
        """Return the fields of a header with the names as brokers know them."""
        return {key: self.wrap(value) if key in _FIELDS else value for key, value in fields.items()}

    def unwrap_fields(self, fields: dict[str, str]) -> dict[str, str]:
        """Return the fields of a header with the names as users know them."""
        return {key: self.unwrap(value) if key in _FIELDS else value for key, value in fields.items()}

    def wrap_json(self, body: bytes) -> bytes:
        """Return a JSON body of ours, without blanks between its parts, with the names as brokers know them."""
        return _JSON_NAME.sub(lambda found: found[1] + self.wrap(found[2].decode()).encode(), body)

    def unwrap_json(self, body: bytes) -> bytes:
        """Return a JSON body with the names of this namespace as users know them."""
        return self._prefixed.sub(rb"\1", body)

    def unwrap_messages(self, messages: Iterable[MessageExt]) -> None:
        """Set the topics of messages, and those that copies remember, as users know them."""
        if not self.name:
            return
        for message in messages:
            is_copy = message.topic.startswith(_SPECIAL)
            message.topic = self.unwrap(message.topic)
            if is_copy and (origin := message.properties.get(PropertyName.RETRY_TOPIC)) is not None:
                message.properties[PropertyName.RETRY_TOPIC] = self.unwrap(origin)


def _split(name: str) -> tuple[str, str]:
    """Return ``%RETRY%`` or ``%DLQ%``, if the name begins so, and the rest."""
    for special in _SPECIAL:
        if name.startswith(special):
            return special, name.removeprefix(special)
    return "", name


def _is_system(name: str) -> bool:
    is_reply = name.endswith(reply_topic(""))
    return is_reply or topic_kind(name, ()) == "system" or is_system_group(name) or name == _INNER_PRODUCER
