"""The life of a broker: loads its tables, and nests the lives of its parts.

Rules: one trio thread owns all state; shutdown is nesting: first the listeners end, then the connections, then the
services, and last the store.

Source: behaviour.md A.1, A.20.
"""

from functools import partial

import trio

from triomq.broker.addresses import Address
from triomq.broker.network.listeners import Endpoint, serve_connections
from triomq.broker.network.tls import ServerTls
from triomq.broker.parts import BrokerParts
from triomq.broker.services.flush import flush_periodically, save_now
from triomq.broker.services.housekeeping import Indexing, log_exposure
from triomq.broker.services.monitor import Monitor
from triomq.storage.config import Durability


class Broker(BrokerParts):
    """A running broker; made by :func:`open_broker`.

    Attributes:
        is_serving: whether it has begun to serve.
        tls: the certificates of all ports, if configured.
        monitor: serves metrics, if configured.
    """

    is_serving = False
    tls: ServerTls | None = None
    monitor: Monitor | None = None

    @property
    def admin_address(self) -> Address | None:
        """The address of --admin-listen, with the port really used."""
        return self.listeners.admin

    def clock_moved(self) -> None:
        """Read the wall clock at once, after it was set; without this call that takes up to a second."""
        self.delayed.arrived.set()
        self.transactions.clock_moved.set()

    def load(self) -> None:
        """Read the tables, and save at once the offsets that had to be lowered.

        Otherwise the next start could find an old offset again, after new messages have been stored at it.

        Raises:
            ConfigError: the file of accounts or quotas is missing or wrong, or that of the audit cannot be written.
            StoreLayoutError: a table and its previous generation cannot be read.
        """
        schedule, timer, offsets = self.delayed.schedule, self.delayed.timer, self.groups.offsets
        self.housekeeping.clock_watch.begin(self.store.commit_log.store_timestamp)
        for file in self.pipeline.access.files:
            file.load()
        if self.pipeline.access.audit is not None:
            self.pipeline.access.audit.open()
        self.registration.promotion.load()
        for table in self.table_saving.tables:
            table.load()
        offsets.restrict(self.store.reader.max_offset_in_queue, is_slave=self.config.is_slave)
        if self.config.is_slave:  # its master delivers, checks, and decides what its tables hold
            if self.store.was_cut:
                offsets.restrict(self.store.reader.max_offset_in_queue)
            return
        schedule.load()
        timer.load()
        self.topics.adopt((queue.topic, queue.queue_id) for queue in self.store.queues)
        self.topics.adopt(self.transactions.undecided.load())
        save_now((offsets, schedule.offsets, timer.progress))

    def save_tables(self) -> None:
        """Write the tables that changed, before the broker ends."""
        self.table_saving.save_now()
        self.delayed.saving.save_now()
        if self.pipeline.access.audit is not None:
            self.pipeline.access.audit.close()

    async def serve(
        self, endpoints: list[Endpoint], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until ``stopping`` is set; started when connections are accepted."""
        config, store, access = self.config, self.store, self.pipeline.access
        async with trio.open_nursery() as services:  # 3. end last
            services.start_soon(self.pulls.run)
            services.start_soon(self.groups.notices.run)
            services.start_soon(self.housekeeping.run)
            services.start_soon(self.table_saving.run, config.persist_offsets_interval_s)
            services.start_soon(self.retention.run)
            self._start_saving_messages(services)
            services.start_soon(Indexing(store.index, self.worker, self.statistics).run)
            if self.metadata is not None:
                services.start_soon(self.metadata.run)
            else:
                services.start_soon(self.delayed.run, config.persist_delay_offsets_interval_s)
                services.start_soon(self.transactions.run)
            for file in access.files:
                services.start_soon(file.run)
            if access.audit is not None:
                services.start_soon(access.audit.run)
            services.start_soon(log_exposure, config.exposure, config.may_misjudge_peers, config.replayable_at)
            async with trio.open_nursery() as server:
                await server.start(
                    serve_connections, self.context, endpoints, self.stopping, self.tls, self._has_unfinished
                )
                services.start_soon(self.registration.run)
                await self.registration.wait_tried()
                self.is_serving = True
                task_status.started()
            services.cancel_scope.cancel()

    async def stop(self) -> None:
        """Leave the name servers, then end :meth:`serve` in order."""
        await self.registration.leave()
        self.stopping.set()

    def _start_saving_messages(self, services: trio.Nursery) -> None:
        """Start the services that write messages to the disk and to slaves, or copy them from a master."""
        flush = partial(flush_periodically, self.store, self.worker, self.statistics.flushes)
        services.start_soon(partial(flush, of_queues=True))
        if self.store.config.durability is Durability.ASYNC:
            services.start_soon(partial(flush, of_queues=False))
        for service in (self.group_commit, self.master, self.slave):
            if service is not None:
                services.start_soon(service.run)

    def _has_unfinished(self) -> bool:
        """Whether senders wait for disk or slaves, or slaves for the last messages."""
        is_waiting = self.group_commit is not None and bool(self.group_commit.waiting)
        return is_waiting or (self.master is not None and self.master.has_unfinished)
