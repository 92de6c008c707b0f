"""Makes a slave the master: the request of an administrator.

A slave decides nothing by itself: it cannot know whether its master has died or only their connection.  An orchestrator
ends the master first, then asks; the request is refused while the master answers.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from triomq.broker.network.connection import Connection
from triomq.broker.replication.asking import places_of
from triomq.broker.replication.master import HEARTBEAT_S
from triomq.broker.replication.slave import Slave
from triomq.broker.services.rank import promoted_ms_of
from triomq.broker.services.registration import Registration
from triomq.broker.shared import BrokerPart
from triomq.protocol.errors import RefusedError
from triomq.protocol.requests.topics import PROMOTED, REGISTERED, PromoteRequestHeader
from triomq.protocol.wire.command import RemotingCommand

LOGGER: Final = logging.getLogger("triomq.broker.replication.promoting")

_TOUCH_S: Final = 2 * HEARTBEAT_S + 1  # a master that lives has sent two heartbeats
_ADVICE: Final = "stop it first, or use --force if only this slave may serve from now on"
_MASTERS: Final = ("async-master", "sync-master")


class _Reopen(Protocol):
    def __call__(self, reason: str, meanwhile: Callable[[], None], **changes: object) -> None: ...


@dataclass(slots=True, eq=False)
class PromotionProcessors(BrokerPart):
    """Answers the requests about promotions.

    Attributes:
        slave: ``None`` at a master.
        registration: that with name servers, which knows the master and the last promotion.
        reopen: opens the broker again with other settings.
    """

    slave: Slave | None
    registration: Registration
    reopen: _Reopen
    _is_deciding: bool = False

    def get_promotion(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer when this broker was promoted, 0 for never: the later master of a name is the one that stays."""
        registration = self.registration
        fields = {PROMOTED: str(registration.promotion.promoted_ms), REGISTERED: str(registration.is_tried).lower()}
        return command.reply(ext_fields=fields)

    def promote(self, connection: Connection, command: RemotingCommand) -> None:
        """Become the master; answered as soon as that is decided, before the broker opens again."""
        header = PromoteRequestHeader.decode(command.ext_fields)
        if self._is_deciding:
            raise RefusedError("another request for a promotion is being decided")
        self._is_deciding = True
        self.context.worker.nursery.start_soon(self._answer, connection, command, header)

    async def _answer(self, connection: Connection, command: RemotingCommand, header: PromoteRequestHeader) -> None:
        try:
            await self._check(header)
            response = command.reply(ext_fields={PROMOTED: str(self._begin(header))})
        except RefusedError as exc:
            response = self.context.refusals.response_to(connection.peer, command, exc)
        finally:
            self._is_deciding = False
        connection.send(response)
        self.context.worker.end_step()

    async def _check(self, header: PromoteRequestHeader) -> None:
        slave = self.slave
        if slave is None:
            raise RefusedError("this broker is a master already")
        if header.role not in _MASTERS:
            raise RefusedError(f"role {header.role}: it must be {' or '.join(_MASTERS)}")
        if header.role == "sync-master" and self.config.ha_listen is None:
            raise RefusedError(
                "a sync-master needs --ha-listen HOST:PORT: start the slave with it, or take async-master"
            )
        if header.force:
            return
        if not slave.log_end:
            raise RefusedError("this slave has copied nothing: promote another one, or use --force")
        if slave.is_following and (age_s := slave.last_received_s) is not None and age_s < _TOUCH_S:
            raise RefusedError(f"its master {slave.master} lives, it sent something {age_s:.1f} s ago: {_ADVICE}")
        for place in places_of(self.registration.master):
            if await promoted_ms_of(place, self.registration.tls) is not None:
                raise RefusedError(f"its master answers at {place}: {_ADVICE}")

    def _begin(self, header: PromoteRequestHeader) -> int:
        master = self.registration.master
        former = "" if master is None else master.address
        promotion = self.registration.promotion.next(header.role, former, self.clock_ms())
        self.reopen("promotion", promotion.save, **promotion.settings())
        LOGGER.info("promoted role=%s former_master=%s forced=%s", header.role, former, header.force)
        return promotion.promoted_ms
