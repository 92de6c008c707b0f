"""Requests to name servers: one is used as long as it answers, then the next.

Source: behaviour.md B.1 (9), wire.md 11.2.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from triomq.protocol.errors import ClientClosedError, ClientError, ConnectError, NameServerError
from triomq.protocol.wire.command import RemotingCommand

LOGGER: Final = logging.getLogger("triomq.client.cluster.namesrv")

_NO_NAME_SERVER: Final = " (is it a name server of RocketMQ?)"


class NameServers:
    """The given name servers and the one in use."""

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self.addresses = addresses
        self._current = 0

    @property
    def current(self) -> str:
        """The address in use."""
        return self.addresses[self._current]

    async def request(
        self, command: RemotingCommand, invoke: Callable[[str, RemotingCommand], Awaitable[RemotingCommand]]
    ) -> RemotingCommand:
        """Ask the name server in use; if it fails, all others in turn.

        Raises:
            NameServerError: none answered; the text names each with its reason.
        """
        reasons: list[str] = []
        for _ in self.addresses:
            asked = self._current
            address = self.addresses[asked]
            try:
                return await invoke(address, command)
            except ClientClosedError:
                raise
            except ClientError as exc:
                reasons.append(f"{exc}{'' if isinstance(exc, ConnectError) else _NO_NAME_SERVER}")
                if asked == self._current:  # else another task has moved on already
                    self._current = (asked + 1) % len(self.addresses)
                    if len(reasons) < len(self.addresses):  # else the error below says it
                        LOGGER.warning("name server failed address=%s next=%s error=%s", address, self.current, exc)
        raise NameServerError(f"no name server answered: {'; '.join(reasons)}")
