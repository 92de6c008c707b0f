"""Users and their policies as RocketMQ 5 writes them: codes 3001 to 3010.

Source: UserInfo.java, AclInfo.java of 5.5.0.
"""

from dataclasses import dataclass, field

from triomq.protocol.bodies.json_body import JsonBody


@dataclass(slots=True)
class UserInfo(JsonBody):
    """A user; its ``repr`` does not show the password."""

    username: str = ""
    password: str | None = field(default=None, repr=False)
    user_type: str = ""
    user_status: str = ""


@dataclass(slots=True)
class PolicyEntryInfo(JsonBody):
    """What a user may do, or may not do, with a resource such as ``Topic:orders``."""

    resource: str = ""
    actions: list[str] = field(default_factory=list)
    source_ips: list[str] | None = None
    decision: str = ""


@dataclass(slots=True)
class PolicyInfo(JsonBody):
    """Entries of one type: Custom, or Default for resources that no custom entry matches."""

    policy_type: str = ""
    entries: list[PolicyEntryInfo] = field(default_factory=list)


@dataclass(slots=True)
class AclInfo(JsonBody):
    """All policies of a subject, such as ``User:operator``."""

    subject: str = ""
    policies: list[PolicyInfo] = field(default_factory=list)
