"""The producers and consumers of one instance, and the heartbeats that announce them to brokers.

Source: behaviour.md B.2, wire.md 5.8 and 9.3.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

import trio

from triomq.client.cluster.requests import Requests
from triomq.client.cluster.route import MASTER_ID, BrokerTable
from triomq.client.connection.broker_requests import ConsumerCallbacks, TransactionChecker
from triomq.client.connection.pool import ConnectionObserver
from triomq.client.nursery import in_parallel
from triomq.protocol.bodies.client import HeartbeatData, ProducerData
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import BrokerResponseError, ClientError
from triomq.protocol.event_log import EventLog
from triomq.protocol.requests.groups import UnregisterClientRequestHeader

LOGGER: Final = logging.getLogger("triomq.client.cluster.groups")

#: Between heartbeats to a broker that sends avoid.
_RECHECK_S: Final = 1.0
#: Time to unregister at all brokers together; they notice the closed connections anyway.
LEAVE_S: Final = 1.0


class Groups(ConnectionObserver):
    """The registered groups, and the heartbeat service.

    Attributes:
        consumers: by group.
        checkers: of transactional producers, by group.
        broker_versions: the version number in each broker's last answer to a heartbeat, by address.
        on_unreachable: called with the address of a broker that consumers cannot reach.
        failing: addresses of brokers where a send failed and that have answered no heartbeat since.
    """

    def __init__(self, requests: Requests, brokers: BrokerTable) -> None:
        self.consumers: dict[str, ConsumerCallbacks] = {}
        self.checkers: dict[str, TransactionChecker] = {}
        self.broker_versions: dict[str, int] = {}
        self.failing: set[str] = set()
        self.on_unreachable: Callable[[str], None] = lambda _address: None
        self._requests = requests
        self._brokers = brokers
        self._client_id = ""
        self._nursery: trio.Nursery
        self._producers: Counter[str] = Counter()
        self._wanted = trio.Event()
        self._announced: set[str] = set()  # addresses whose connection carried a heartbeat that was answered
        self._beating: Counter[str] = Counter()  # addresses with a heartbeat under way
        self._unreached: set[str] = set()  # addresses whose last heartbeat failed
        self._connections_log = EventLog(
            LOGGER,
            "broker unreachable, retrying address=%s error=%s",
            logging.WARNING,
            recovery="broker reachable again address=%s",
        )
        self._heartbeats_log = EventLog(
            LOGGER, "heartbeat failed broker=%s error=%s", logging.WARNING, recovery="heartbeat works again broker=%s"
        )

    def start(self, client_id: str, nursery: trio.Nursery) -> None:
        """Send heartbeats from now on."""
        self._client_id = client_id
        self._nursery = nursery
        nursery.start_soon(self._run)

    def connected(self, address: str) -> None:
        """A connection was made: announce the groups on it."""
        if address in self._brokers.addresses():
            self.wake(address)

    def disconnected(self, address: str, reason: str) -> None:
        """A connection has ended: notify the consumers."""
        self._announced.discard(address)
        if address in self._brokers.addresses():
            self.unreachable(address, f"connection lost: {reason}")
            for consumer in tuple(self.consumers.values()):
                consumer.connection_lost(address)

    def unreachable(self, address: str, reason: str) -> None:
        """Warn for all tasks of consumers together, which retry until it works; other callers get the error."""
        if self.consumers and self._requests.is_open and address in self._brokers.addresses():
            self._connections_log.occurred(address, reason, key=address)
            self.on_unreachable(address)

    def send_failed(self, address: str) -> None:
        """A broker did not answer a send: it is failing until it answers a heartbeat, the first of them in 1 s."""
        if address not in self.failing and self._requests.is_open:
            self.failing.add(address)
            self._nursery.start_soon(self._recheck, address)

    def wake(self, address: str = "") -> None:
        """Send heartbeats soon, unless ``address`` is given and is being sent one."""
        if not self._beating[address]:
            self._wanted.set()

    def add_producer(self, group: str) -> None:
        """Count a producer of the group, and send a heartbeat soon.

        Raises:
            ClientClosedError: the instance is not open.
        """
        self._requests.check_open()
        self._producers[group] += 1
        self.wake()

    def add_consumer(self, group: str, consumer: ConsumerCallbacks) -> None:
        """Add the only consumer of the group on this instance, and send a heartbeat soon.

        Raises:
            ClientError: the group has a consumer on this instance, or the instance is not open.
        """
        self._requests.check_open()
        if group in self.consumers:
            raise ClientError(f"consumer group {group!r} is on this instance already: give each its own instance")
        self.consumers[group] = consumer
        self.wake()

    async def remove_producer(self, group: str) -> None:
        """Remove a producer; the last of its group unregisters at all brokers, in 1 s at most, even if cancelled."""
        self._producers[group] -= 1
        if not self._producers[group]:
            del self._producers[group]
            await self._leave(producer_group=group)

    async def remove_consumer(self, group: str) -> None:
        """Remove the consumer and unregister at all brokers, in 1 s at most, even if cancelled."""
        if self.consumers.pop(group, None) is not None:
            await self._leave(consumer_group=group)

    async def _run(self) -> None:
        while True:
            with trio.move_on_after(self._requests.config.heartbeat_interval_s):
                await self._wanted.wait()
            self._wanted = trio.Event()
            await self.beat()

    async def beat(self) -> None:
        """Send a heartbeat to each known broker and wait for the answers.

        Slaves get one only if there is a consumer.
        """
        await trio.lowlevel.checkpoint()
        if not (self._producers or self.consumers):
            return
        body = self._heartbeat()
        async with trio.open_nursery() as nursery:
            for address, (_name, broker_id) in self._brokers.addresses().items():
                if self.consumers or broker_id == MASTER_ID:
                    nursery.start_soon(self._beat_one, address, body)

    async def announce(self, addresses: Collection[str]) -> None:
        """Return when these brokers know the groups of this instance, as far as they can be reached."""
        if not self._announced.issuperset(addresses):
            await self.beat()

    def _heartbeat(self) -> bytes:
        return HeartbeatData(
            client_id=self._client_id,
            producer_data_set=[ProducerData(group_name=group) for group in sorted(self._producers)],
            consumer_data_set=[consumer.heartbeat_data() for consumer in self.consumers.values()],
        ).encode()

    async def _recheck(self, address: str) -> None:
        """Send heartbeats until one is answered, or the broker is in no known route."""
        is_answered = False
        while not is_answered and address in self._brokers.addresses():
            await trio.sleep(_RECHECK_S)
            is_answered = await self._beat_one(address, self._heartbeat(), is_logged=False)  # the send's error is
        self.failing.discard(address)

    async def _beat_one(self, address: str, body: bytes, *, is_logged: bool = True) -> bool:
        """Send a heartbeat; return whether there was an answer, a refusal too."""
        self._beating[address] += 1
        try:
            version = await self._requests.heartbeat(address, body)
        except (ClientError, BrokerResponseError) as exc:
            is_answered, is_repeated = isinstance(exc, BrokerResponseError), address in self._unreached
            if is_logged:  # a refusal, or the second failure in a row; a single one does no harm
                self._unreached.add(address)
                if is_answered or (is_repeated and not (self.consumers and exc.is_logged_once)):
                    self._heartbeats_log.occurred(address, exc, key=address)
            if is_answered:
                self._connections_log.ended(address, key=address)
            return is_answered
        else:
            self.broker_versions[address] = version
            self._announced.add(address)
            self._unreached.discard(address)
            self._heartbeats_log.ended(address, key=address)
            self._connections_log.ended(address, key=address)
            return True
        finally:
            self._beating[address] -= 1

    async def _leave(self, producer_group: str | None = None, consumer_group: str | None = None) -> None:
        """Unregister where there is a connection: other brokers have dropped this client already."""
        header = UnregisterClientRequestHeader(self._client_id, producer_group, consumer_group)
        connected = self._requests.check_open().addresses()

        async def leave(address: str) -> None:
            try:
                await self._requests.invoke(address, self._requests.command(RequestCode.UNREGISTER_CLIENT, header))
            except ClientError as exc:
                LOGGER.info("unregister failed broker=%s error=%s", address, exc)

        with trio.move_on_after(LEAVE_S, shield=True):
            await in_parallel(leave, self._brokers.addresses().keys() & connected)
