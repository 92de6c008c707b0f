"""Headers of requests about accounts.

Source: wire.md 7.
"""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from triomq.protocol.codes import RequestCode
from triomq.protocol.wire.headers import Header, Resource


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
