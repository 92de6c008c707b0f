"""Headers of requests about clients, their groups and accounts.

Source: wire.md 5, 6, 7.
"""

from dataclasses import dataclass, field
from typing import Annotated

from triomq.protocol.wire.headers import Header, Resource, Wire


@dataclass(slots=True)
class UnregisterClientRequestHeader(Header):
    """Source: UnregisterClientRequestHeader.java."""

    client_id: Annotated[str, Wire("clientID")]
    producer_group: str | None = None
    consumer_group: Annotated[str, Resource.GROUP] | None = None


@dataclass(slots=True)
class ConsumerGroupRequestHeader(Header):
    """Names one consumer group: codes 38, 40 and 203."""

    consumer_group: Annotated[str, Resource.GROUP]


@dataclass(slots=True)
class GetConsumerRunningInfoRequestHeader(ConsumerGroupRequestHeader):
    """Source: GetConsumerRunningInfoRequestHeader.java."""

    client_id: str


@dataclass(slots=True)
class DeleteSubscriptionGroupRequestHeader(Header):
    """Source: DeleteSubscriptionGroupRequestHeader.java; 5.x calls the second field cleanOffset."""

    group_name: Annotated[str, Resource.GROUP]
    remove_offset: bool = False
    clean_offset: bool = False


@dataclass(slots=True)
class ProducerGroupRequestHeader(Header):
    """Source: GetProducerConnectionListRequestHeader.java."""

    producer_group: Annotated[str, Resource.GROUP]


@dataclass(slots=True)
class GroupRequestHeader(Header):
    """Names one group: codes 343 and 352 of 5.x."""

    group: Annotated[str, Resource.GROUP]


@dataclass(slots=True)
class QuerySubscriptionRequestHeader(GroupRequestHeader):
    """Source: QuerySubscriptionByConsumerRequestHeader.java of 5.x."""

    topic: Annotated[str, Resource.TOPIC]


@dataclass(slots=True)
class UpdateAccountRequestHeader(Header):
    """Source: CreateAccessConfigRequestHeader.java; lists with commas."""

    access_key: Annotated[str, Resource.ACCOUNT]
    admin: bool
    secret_key: str | None = field(default=None, repr=False)
    white_remote_address: str | None = None
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


@dataclass(slots=True)
class DeleteAccountRequestHeader(Header):
    """Source: DeleteAccessConfigRequestHeader.java."""

    access_key: Annotated[str, Resource.ACCOUNT]


@dataclass(slots=True)
class UserRequestHeader(Header):
    """Names one user of RocketMQ 5: codes 3001 to 3004."""

    username: Annotated[str, Resource.ACCOUNT]


@dataclass(slots=True)
class ListUsersRequestHeader(Header):
    """Source: ListUsersRequestHeader.java."""

    filter: str = ""


@dataclass(slots=True)
class SubjectRequestHeader(Header):
    """Names one subject, such as ``User:operator``: codes 3006, 3007 and 3009."""

    subject: Annotated[str, Resource.ACCOUNT]


@dataclass(slots=True)
class DeleteAclRequestHeader(Header):
    """Source: DeleteAclRequestHeader.java; its policyType decides nothing here."""

    subject: Annotated[str, Resource.ACCOUNT]
    resource: str = ""


@dataclass(slots=True)
class ListAclsRequestHeader(Header):
    """Source: ListAclsRequestHeader.java."""

    subject_filter: str = ""
    resource_filter: str = ""
