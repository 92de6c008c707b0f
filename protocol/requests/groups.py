"""Headers of requests about clients, their groups and accounts.

Source: wire.md 5, 6, 7.
"""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from triomq.protocol.codes import RequestCode
from triomq.protocol.wire.headers import Header, Resource, Wire


@dataclass(slots=True)
class UnregisterClientRequestHeader(Header):
    """Source: UnregisterClientRequestHeader.java."""

    code: ClassVar[int] = RequestCode.UNREGISTER_CLIENT
    client_id: Annotated[str, Wire("clientID")]
    producer_group: str | None = None
    consumer_group: Annotated[str, Resource.GROUP] | None = None


@dataclass(slots=True)
class ConsumerGroupRequestHeader(Header):
    """Names one consumer group: codes 38, 40 and 203."""

    consumer_group: Annotated[str, Resource.GROUP]


@dataclass(slots=True)
class GetConsumerRunningInfoRequestHeader(Header):
    """Source: GetConsumerRunningInfoRequestHeader.java."""

    code: ClassVar[int] = RequestCode.GET_CONSUMER_RUNNING_INFO
    consumer_group: Annotated[str, Resource.GROUP]
    client_id: str
    jstack_enable: bool = False


@dataclass(slots=True)
class DeleteSubscriptionGroupRequestHeader(Header):
    """Source: DeleteSubscriptionGroupRequestHeader.java; 5.x calls the second field cleanOffset."""

    code: ClassVar[int] = RequestCode.DELETE_SUBSCRIPTIONGROUP
    group_name: Annotated[str, Resource.GROUP]
    remove_offset: bool = False
    clean_offset: bool = False


@dataclass(slots=True)
class ProducerGroupRequestHeader(Header):
    """Source: GetProducerConnectionListRequestHeader.java."""

    code: ClassVar[int] = RequestCode.GET_PRODUCER_CONNECTION_LIST
    producer_group: str


@dataclass(slots=True)
class GroupRequestHeader(Header):
    """Code 352 of 5.x.  Source: GetSubscriptionGroupConfigRequestHeader.java."""

    code: ClassVar[int] = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
    group: Annotated[str, Resource.GROUP]


@dataclass(slots=True)
class UpdateAccountRequestHeader(Header):
    """Source: CreateAccessConfigRequestHeader.java; lists with commas."""

    code: ClassVar[int] = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
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

    code: ClassVar[int] = RequestCode.DELETE_ACL_CONFIG
    access_key: Annotated[str, Resource.ACCOUNT]
