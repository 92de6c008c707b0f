"""Accounts: UPDATE_AND_CREATE_ACL_CONFIG (50), DELETE_ACL_CONFIG (51), GET_BROKER_CLUSTER_ACL_INFO (52),
UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53), GET_BROKER_CLUSTER_ACL_CONFIG (54); as users and policies of RocketMQ 5:
AUTH_CREATE_USER (3001) to AUTH_LIST_ACL (3010).

A change is checked, written to that of the broker's own files which has the account, and counts as soon as it is
answered.  No answer has a secret or a path.

Source: wire.md 7; AdminBrokerProcessor.java.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import orjson
import trio

from triomq.broker.accounts import Accounts
from triomq.broker.network.connection import Connection
from triomq.broker.shared import BrokerPart
from triomq.broker.work import Answer, encode
from triomq.protocol.acl import plain_acl, users
from triomq.protocol.acl.plain_acl import ACCESS_KEY
from triomq.protocol.bodies.users import AclInfo, UserInfo
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import ConfigError, RefusedError
from triomq.protocol.requests import groups
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.reading.cold_read import Work

LOGGER: Final = logging.getLogger("triomq.broker.processors.acl")

_MAX_WAITING: Final = 100


def _user(command: RemotingCommand) -> UserInfo:
    user = UserInfo.decode(command.body)
    user.username = groups.UserRequestHeader.decode(command.ext_fields).username
    return user


@dataclass(slots=True, eq=False)
class AclProcessors(BrokerPart):
    """Lists and changes the accounts; a worker thread reads and writes the file, for one request at a time."""

    accounts: Accounts
    #: The first one is served.
    _waiting: deque[tuple[Connection, RemotingCommand, Callable[[], bytes], int]] = field(default_factory=deque)

    def update_and_create_acl_config(self, connection: Connection, command: RemotingCommand) -> None:
        """Add or change an account."""
        failure = ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
        try:
            wanted = plain_acl.changes_of(command.ext_fields)
        except ConfigError as exc:
            raise RefusedError(str(exc), failure) from None
        change = partial(plain_acl.set_account, changes=wanted)
        self._change_account(connection, command, str(wanted[ACCESS_KEY]), change, failure)

    def delete_acl_config(self, connection: Connection, command: RemotingCommand) -> None:
        """Remove an account."""
        key = command.ext_fields.get(ACCESS_KEY, "")
        change = partial(plain_acl.delete_account, key=key)
        self._change_account(connection, command, key, change, ResponseCode.DELETE_ACL_CONFIG_FAILED)

    def update_global_white_addrs_config(self, connection: Connection, command: RemotingCommand) -> None:
        """Replace the addresses of a file that may do everything; no other files than the broker's own can be named."""
        failure = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
        addresses = command.ext_fields.get("globalWhiteAddrs")
        if addresses is None:
            raise RefusedError("globalWhiteAddrs is missing", failure)
        change = partial(plain_acl.set_white_addresses, addresses=plain_acl.split(addresses))
        find = partial(self.accounts.file_named, command.ext_fields.get("aclFileFullPath", ""))
        self._change(connection, command, find, change, failure)

    def get_broker_cluster_acl_info(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with the versions of the files of accounts."""
        versions = {name: version.to_json() for name, version in self.accounts.versions.items()}
        fields = {
            "version": orjson.dumps(next(iter(versions.values()))).decode(),
            "allAclFileVersion": orjson.dumps(versions).decode(),
            "brokerName": self.config.broker_name,
            "brokerAddr": connection.advertised,
            "clusterName": self.config.cluster_name,
        }
        return command.reply(ext_fields=fields)

    def get_broker_cluster_acl_config(self, connection: Connection, command: RemotingCommand) -> None:
        """Answer with all accounts as the files have them, without secrets."""

        def read() -> bytes:
            return orjson.dumps(plain_acl.public_accounts(self.accounts.read_texts()))

        self._start(connection, command, read, ResponseCode.SYSTEM_ERROR)

    # --- users and policies of RocketMQ 5 ---------------------------------------------------------------

    def auth_create_user(self, connection: Connection, command: RemotingCommand) -> None:
        """Add an account."""
        user = _user(command)
        self._change_account(connection, command, user.username, partial(users.create_user, user=user))

    def auth_update_user(self, connection: Connection, command: RemotingCommand) -> None:
        """Change the secret of an account, or whether it is an administrator."""
        user = _user(command)
        self._change_account(connection, command, user.username, partial(users.update_user, user=user))

    def auth_delete_user(self, connection: Connection, command: RemotingCommand) -> None:
        """Remove an account, if there is one."""
        name = groups.UserRequestHeader.decode(command.ext_fields).username
        self._change_account(connection, command, name, partial(users.delete_user, name=name))

    def auth_get_user(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with an account; without a body if it does not exist."""
        account = self.accounts.rules.accounts.get(groups.UserRequestHeader.decode(command.ext_fields).username)
        return command.reply(body=b"" if account is None else users.user_info(account).encode())

    def auth_list_user(self, _connection: Connection, command: RemotingCommand) -> Work[Answer]:
        """Answer with the accounts whose names contain the filter."""
        part = groups.ListUsersRequestHeader.decode(command.ext_fields).filter
        found = [users.user_info(each) for key, each in self.accounts.rules.accounts.items() if part in key]
        return command.reply(body=(yield from encode(found)) if found else b"")

    def auth_create_acl(self, connection: Connection, command: RemotingCommand) -> None:
        """Set rights of an account."""
        subject = groups.SubjectRequestHeader.decode(command.ext_fields).subject
        acl = AclInfo.decode(command.body)
        if acl.subject not in ("", subject):
            raise RefusedError("header and body name different subjects", ResponseCode.NO_PERMISSION)
        name = users.user_of(subject)
        self._change_account(connection, command, name, partial(users.set_policies, name=name, policies=acl.policies))

    auth_update_acl = auth_create_acl

    def auth_delete_acl(self, connection: Connection, command: RemotingCommand) -> None:
        """Remove the rights of an account on a resource, or all of its rights."""
        header = groups.DeleteAclRequestHeader.decode(command.ext_fields)
        name = users.user_of(header.subject)
        change = partial(users.delete_policies, name=name, resource=header.resource)
        self._change_account(connection, command, name, change)

    def auth_get_acl(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with the rights of an account, or without a body if it has none."""
        name = users.user_of(groups.SubjectRequestHeader.decode(command.ext_fields).subject)
        account = self.accounts.rules.accounts.get(name)
        if account is None:
            raise RefusedError(f"there is no user {name:.255}", ResponseCode.NO_PERMISSION)
        acl = users.acl_info(account)
        return command.reply(body=b"" if acl is None else acl.encode())

    def auth_list_acl(self, _connection: Connection, command: RemotingCommand) -> Work[Answer]:
        """Answer with the rights on resources that contain a filter, of accounts whose subjects contain another."""
        header = groups.ListAclsRequestHeader.decode(command.ext_fields)
        acls = (users.acl_info(each, header.resource_filter) for each in self.accounts.rules.accounts.values())
        found = [acl for acl in acls if acl is not None and header.subject_filter in acl.subject]
        return command.reply(body=(yield from encode(found)) if found else b"")

    # --- work -------------------------------------------------------------------------------------------

    def _change_account(
        self,
        connection: Connection,
        command: RemotingCommand,
        key: str,
        change: Callable[[str], str],
        failure: int = ResponseCode.NO_PERMISSION,
    ) -> None:
        """Have the file changed that has an account, or takes new ones."""
        self._change(connection, command, partial(self.accounts.file_of, key), change, failure)

    def _change(
        self,
        connection: Connection,
        command: RemotingCommand,
        find: Callable[[], Path | None],
        change: Callable[[str], str],
        failure: int,
    ) -> None:
        """Have the file that ``find`` returns changed."""

        def rewrite() -> bytes:
            path = find()
            if path is None:
                raise ConfigError("aclFileFullPath does not name this broker's file of accounts")
            self.accounts.rewrite(path, change)
            LOGGER.info("accounts changed code=%d peer=%s", command.code, connection.peer)
            return b""

        self._start(connection, command, rewrite, failure)

    def _start(self, connection: Connection, command: RemotingCommand, work: Callable[[], bytes], failure: int) -> None:
        """Do the work when all before it is done, then answer.

        Raises:
            RefusedError: too much waits already.
        """
        if len(self._waiting) >= _MAX_WAITING:
            raise RefusedError("too many requests about accounts wait: try again later", ResponseCode.SYSTEM_BUSY)
        self._waiting.append((connection, command, work, failure))
        if len(self._waiting) == 1:
            self.context.worker.nursery.start_soon(self._run)

    async def _run(self) -> None:
        while self._waiting:
            connection, command, work, failure = self._waiting[0]
            try:
                response = command.reply(body=await trio.to_thread.run_sync(work))
                await self.accounts.look()
            except ConfigError as exc:
                response = self.context.refusals.response(connection.peer, command, failure, str(exc))
            except Exception as exc:  # noqa: BLE001  # boundary, as in Connection
                response = self.context.refusals.response_to(connection.peer, command, exc)
            self._waiting.popleft()
            if not command.is_oneway:
                connection.send(response)
            self.context.worker.end_step()
