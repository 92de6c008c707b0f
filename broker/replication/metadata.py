"""The metadata of a slave: its master's topics, groups, consumer offsets and delay progress, copied every 10 s.

Rules:

- Topics and groups are replaced as a whole if their version differs; a topic that has gone loses its queues here, too.
- The master's consumer offsets replace those here.  Offsets that clients committed here while the master was away are
  an exception: the higher one of both stays, and is committed to the master.  In RocketMQ they are lost, so that
  groups consume those messages again.
- All is saved as soon as it has changed, so that a slave can start without its master.

Nothing is taken from a master that does not accept this log as a copy.  It may be another broker, or
have an empty disk: its tables would make the slave delete all topics.  A slave without a log has nothing to lose.

The connection stays open, so that a slave notices soon that its master is away.  A commit before it notices is not
kept, but the next one of the same queue is.

Source: store.md 9.5; SlaveSynchronize.java.
"""

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import trio

from triomq.broker.network.sessions import Session
from triomq.broker.processors.admin import AdminProcessors
from triomq.broker.replication.asking import MasterPort, UnreachableError, converse
from triomq.broker.replication.slave import Slave
from triomq.broker.saved_table import SavedTable
from triomq.broker.services.flush import TableSaving
from triomq.broker.services.rank import promoted_ms_in
from triomq.protocol.bodies import fastjson
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import ProtocolError, StoreError
from triomq.protocol.event_log import EventLog
from triomq.protocol.message_queue import QueueOffset
from triomq.protocol.requests.offsets import UpdateConsumerOffsetRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.reading.cold_read import Work

LOGGER: Final = logging.getLogger("triomq.broker.replication.metadata")

_INTERVAL_S: Final = 10.0
_RETRY_S: Final = 1.0
_LOG_S: Final = 5.0  # how long the log may take to get as far as the master's was
_LOG_PAUSE_S: Final = 0.05
_UNREADABLE: Final = (AttributeError, KeyError, TypeError, ValueError, ProtocolError)


@dataclass(eq=False)
class MetadataCopy:
    """Copies the tables of the master while the slave runs; until then commits are kept.

    Attributes:
        admin: has the tables to copy into.
        slave: copies the log.
        saving: writes the tables.
        port: reaches the master.
        copied_at: when all tables were last copied, by trio's clock; ``None``: not since the start.
    """

    admin: AdminProcessors
    slave: Slave
    saving: TableSaving
    port: MasterPort
    copied_at: float | None = None

    def __post_init__(self) -> None:
        self._offsets = self.admin.groups.offsets
        self._offsets.keeps_commits = True
        self._gone: set[str] = set()  # topics that the master has no more, and that are not deleted here yet
        self._worker = self.admin.context.worker
        self._log = EventLog(
            LOGGER,
            "metadata of the master is not copied for now master=%s reason=%s",
            logging.WARNING,
            recovery="metadata of the master is copied again master=%s",
        )

    async def run(self) -> None:
        """Copy every 10 s, at first as soon as the master's address is known, until cancelled."""
        registration = self.admin.registration
        while True:
            while (master := registration.master) is None:
                await registration.master_changed.wait()
            try:
                stream = await self.port.connect(master)
                reason = await converse(stream, partial(self._copy_regularly, master.address))
            except UnreachableError as exc:
                reason = str(exc)
            self._offsets.keeps_commits = True
            self._log.occurred(master.address, reason, cause=reason)
            await trio.sleep(_RETRY_S)

    async def _copy_regularly(self, address: str, session: Session) -> None:
        """Copy until it fails, or the name server knows another master.

        Raises:
            trio.BrokenResourceError, trio.TooSlowError: the master cannot be reached any more.
        """
        registration, is_new = self.admin.registration, True
        while self._is_master(address):
            if self.slave.log_end and not self.slave.is_following:
                await trio.sleep(_RETRY_S)
                continue
            try:
                async with session.lock:
                    if is_new:  # once: Apache's brokers log requests that they do not know
                        promoted_ms = promoted_ms_in(await self.port.ask(session, RequestCode.GET_PROMOTION))
                        await trio.to_thread.run_sync(registration.promotion.heard_of, promoted_ms)
                        is_new = False
                    await self._copy(session)
            except (*_UNREADABLE, StoreError) as exc:
                session.end(str(exc) if isinstance(exc, ProtocolError | StoreError) else f"unreadable answer: {exc!r}")
                return
            if self.copied_at is None:
                LOGGER.info("metadata copied master=%s", address)
            self.copied_at = trio.current_time()
            self._log.ended(address)
            with trio.move_on_after(_INTERVAL_S):
                while self._is_master(address):
                    await registration.master_changed.wait()
        session.end("the name server knows another master")

    def _is_master(self, address: str) -> bool:
        master = self.admin.registration.master
        return master is not None and master.address == address

    async def _copy(self, session: Session) -> None:
        """Copy all tables once; topics first, because those that have gone take offsets with them."""
        admin, log_end = self.admin, self.admin.store.commit_log.max_offset
        self._gone |= admin.topics.configs.keys()
        await self._take(session, RequestCode.GET_ALL_TOPIC_CONFIG, admin.topics)
        self._gone -= admin.topics.configs.keys() | admin.topics.system_topics
        for topic in sorted(self._gone):
            await self._worker.run(self._delete(topic, log_end))
        await self._take(session, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, admin.groups.settings)
        await self._take(session, RequestCode.GET_ALL_CONSUMER_OFFSET, self._offsets)
        self._offsets.keeps_commits = False
        await self._return_kept(session)
        await self._copy_progress(session)
        self.saving.changed.set()

    def _delete(self, topic: str, log_end: int) -> Work[None]:
        """Delete a topic that the master did not have any more when the log here ended at ``log_end``.

        If there are later messages, the master has made it again since: the next copy brings it.
        """
        if all(queue.max_physical_offset <= log_end for queue in self.admin.store.queues.of_topic(topic)):
            yield from self.admin.deletion(topic)
            self._gone.discard(topic)
            LOGGER.info("topic deleted as at the master topic=%s", topic)

    async def _copy_progress(self, session: Session) -> None:
        """Copy how far the master has delivered delayed messages, once the log here holds those messages.

        Otherwise these messages could be lost when this slave becomes the master.
        """
        log, delayed = self.admin.store.commit_log, self.admin.delayed
        response = await self._fetch(session, RequestCode.GET_ALL_DELAY_OFFSET)
        end = int(response.ext_fields.get("logEnd", 0))  # RocketMQ sends neither this nor the other field
        with trio.move_on_after(_LOG_S):
            while log.max_offset < end:  # noqa: ASYNC110  # an event would make each append more expensive
                await trio.sleep(_LOG_PAUSE_S)
        if log.max_offset >= end:
            await self._apply(response.body, delayed.schedule.offsets)
            if progress := response.ext_fields.get("timerProgress"):
                await self._apply(progress.encode(), delayed.timer.progress)

    async def _take(self, session: Session, code: RequestCode, table: SavedTable) -> None:
        await self._apply((await self._fetch(session, code)).body, table)

    async def _fetch(self, session: Session, code: RequestCode) -> RemotingCommand:
        response = await self.port.ask(session, code)
        if response.code != ResponseCode.SUCCESS:
            raise ProtocolError(f"request {code} refused: {response.remark} ({response.code})")
        return response

    async def _apply(self, body: bytes | memoryview, table: SavedTable) -> None:
        sent: Any = await trio.to_thread.run_sync(fastjson.loads, body)
        await self._worker.run(table.copy_from(sent))

    async def _return_kept(self, session: Session) -> None:
        """Commit the kept offsets to the master; those that are not higher than its own are kept no longer."""
        count, refused = 0, ""
        for group, topic, queue_id, queue_offset in self._offsets.take_kept():
            header = UpdateConsumerOffsetRequestHeader(group, topic, queue_id, QueueOffset(queue_offset))
            response = await self.port.ask(session, RequestCode.UPDATE_CONSUMER_OFFSET, header.encode())
            count += 1
            if response.code != ResponseCode.SUCCESS:
                refused = f"group={group} topic={topic} queue={queue_id} offset={queue_offset}: {response.remark}"
        if refused:
            LOGGER.warning("the master refuses offsets: such as %s", refused)
        if count:
            LOGGER.info("offsets that were committed here are returned to the master count=%d", count)
