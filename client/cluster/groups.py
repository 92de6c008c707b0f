"""The producers and consumers of one instance, and the heartbeats that tell brokers of them.

Source: behaviour.md B.2, wire.md 5.8 and 9.3.
"""

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

import trio

from triomq.client.cluster.route import MASTER_ID
from triomq.client.connection.broker_requests import ConsumerCallbacks
from triomq.client.connection.pool import is_reported
from triomq.protocol.bodies.client import HeartbeatData, ProducerData
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import BrokerResponseError, ClientError
from triomq.protocol.requests.requests import UnregisterClientRequestHeader
from triomq.protocol.trouble_log import TroubleLog

if TYPE_CHECKING:
    from triomq.client.cluster.instance import ClientInstance

LOGGER: Final = logging.getLogger("triomq.client.cluster.groups")

#: Time to take leave of all brokers together; they notice the closed connections anyway.
LEAVE_S: Final = 1.0


class Groups:
    """Who is registered, and the heartbeat service."""

    def __init__(self, instance: "ClientInstance") -> None:
        self._instance = instance
        self._producers: Counter[str] = Counter()
        self.consumers: dict[str, ConsumerCallbacks] = {}
        self.broker_versions: dict[str, int] = {}
        self._wanted = trio.Event()
        self._beating: Counter[str] = Counter()  # addresses with a heartbeat under way
        self._unreached: set[str] = set()  # addresses whose last heartbeat failed
        self._troubles = TroubleLog(LOGGER)

    def __bool__(self) -> bool:
        return bool(self._producers or self.consumers)

    def wake(self, address: str = "") -> None:
        """Send heartbeats soon; unless ``address`` is given and gets one just now."""
        if not self._beating[address]:
            self._wanted.set()

    def add_producer(self, group: str) -> None:
        """Count a producer of the group."""
        self._producers[group] += 1
        self.wake()

    def add_consumer(self, group: str, consumer: ConsumerCallbacks) -> None:
        """Add the only consumer of the group on this instance.

        Raises:
            ClientError: there is one already.
        """
        if group in self.consumers:
            raise ClientError(f"consumer group {group!r} is on this instance already: give each its own instance")
        self.consumers[group] = consumer
        self.wake()

    async def remove_producer(self, group: str) -> None:
        """Take the producer out; the last of its group unregisters at all brokers."""
        self._producers[group] -= 1
        if not self._producers[group]:
            del self._producers[group]
            await self._leave(producer_group=group)

    async def remove_consumer(self, group: str) -> None:
        """Take the consumer out and unregister at all brokers."""
        if self.consumers.pop(group, None) is not None:
            await self._leave(consumer_group=group)

    async def run(self) -> None:
        """Send heartbeats in time, and at once when woken."""
        while True:
            with trio.move_on_after(self._instance.config.heartbeat_interval_s):
                await self._wanted.wait()
            self._wanted = trio.Event()
            await self.beat()

    async def beat(self) -> None:
        """Send a heartbeat to each known broker and wait for the answers.

        Slaves get one only if there is a consumer.
        """
        await trio.lowlevel.checkpoint()
        if not self:
            return
        body = HeartbeatData(
            client_id=self._instance.client_id,
            producer_data_set=[ProducerData(group_name=group) for group in sorted(self._producers)],
            consumer_data_set=[consumer.heartbeat_data() for consumer in self.consumers.values()],
        ).encode()
        async with trio.open_nursery() as nursery:
            for address, (_name, broker_id) in self._instance.broker_addresses().items():
                if self.consumers or broker_id == MASTER_ID:
                    nursery.start_soon(self._beat_one, address, body)

    async def _beat_one(self, address: str, body: bytes) -> None:
        self._beating[address] += 1
        try:
            version = await self._instance.heartbeat(address, body)
        except (ClientError, BrokerResponseError) as exc:
            self._failed(address, exc)
        else:
            self.broker_versions[address] = version
            self._unreached.discard(address)
            self._troubles.end(address, "heartbeat works again broker=%s", address)
        finally:
            self._beating[address] -= 1

    def _failed(self, address: str, error: ClientError | BrokerResponseError) -> None:
        """Log a refusal, or the second failure in a row; a single one does no harm."""
        is_repeated = address in self._unreached
        self._unreached.add(address)
        if isinstance(error, BrokerResponseError) or (is_repeated and not (self.consumers and is_reported(error))):
            self._troubles.begin(address, "heartbeat failed broker=%s error=%s", address, error)

    async def _leave(self, producer_group: str | None = None, consumer_group: str | None = None) -> None:
        """Unregister where there is a connection: other brokers have dropped this client already."""
        instance = self._instance
        header = UnregisterClientRequestHeader(instance.client_id, producer_group, consumer_group)
        connected = instance.connected_addresses()
        with trio.move_on_after(LEAVE_S, shield=True):
            async with trio.open_nursery() as nursery:
                for address in instance.broker_addresses().keys() & connected:
                    nursery.start_soon(self._leave_one, address, header)

    async def _leave_one(self, address: str, header: UnregisterClientRequestHeader) -> None:
        try:
            await self._instance.invoke(address, self._instance.command(RequestCode.UNREGISTER_CLIENT, header))
        except ClientError as exc:
            LOGGER.info("unregister failed broker=%s error=%s", address, exc)
