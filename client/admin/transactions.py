"""Undecided transactions: half messages that no operation message names.

Source: behaviour.md A.6, store.md 5.8.
"""

from functools import partial
from itertools import chain
from typing import NamedTuple

from triomq.client.admin.base import BaseAdmin
from triomq.client.admin.browsing import read_between
from triomq.client.cluster.instance import ClientInstance
from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.consumer.pull import TOOLS_GROUP, PullConsumer
from triomq.client.nursery import in_parallel
from triomq.client.producer.transaction import TransactionState
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import ClientError, NoRouteError
from triomq.protocol.message_queue import MessageQueue, PhysicalOffset, QueueOffset
from triomq.protocol.names import CHECK_MAX_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import PropertyName
from triomq.protocol.requests.messages import EndTransactionRequestHeader, ResumeCheckHalfMessageRequestHeader
from triomq.protocol.transactions import Replay, checks_of, settled_offsets


class UndecidedTransaction(NamedTuple):
    """A transaction that no producer has decided.

    Attributes:
        transaction_id: the producer's id of the message.
        group: the producer group that is asked.
        topic: where the message goes if it is committed.
        born_ms: when it was sent, by the producer's clock.
        checks: how often producers were asked.
        half: its last half message.
    """

    transaction_id: str
    group: str
    topic: str
    born_ms: int
    checks: int
    half: MessageExt


class TransactionAdmin(BaseAdmin):
    """Reads and decides transactions."""

    async def transactions(self) -> list[UndecidedTransaction]:
        """Return the undecided transactions of all brokers, oldest first.

        Raises:
            NoRouteError: operation messages of a broker cannot be read, as those of RocketMQ 4.
        """
        async with PullConsumer(TOOLS_GROUP, instance=self._entered()) as pull:
            found = await in_parallel(partial(_read_broker, self._entered(), pull), await _queues(pull, HALF_TOPIC))
        return sorted(chain(*found), key=lambda transaction: transaction.born_ms)

    async def decide_transaction(self, transaction_id: str, state: TransactionState) -> None:
        """Commit or roll back an undecided transaction; ``UNKNOWN`` has a producer asked now.

        The id is that of the message, or the offset id of its half.  ``UNKNOWN`` also accepts one that was given up.

        Raises:
            ClientError: it is not undecided.
            BrokerResponseError: the broker rejected the request.
        """
        halves = [each.half for each in await self.transactions()]
        half = next((one for one in halves if transaction_id in (one.message_id, one.offset_message_id)), None)
        if half is None and state is TransactionState.UNKNOWN:
            half = await self._find_given_up(transaction_id)
        if half is None:
            raise ClientError(
                f"transaction {transaction_id!r} is not undecided: triomq transaction list shows those that are"
            )
        address = self._master(half.broker_name)
        if state is TransactionState.UNKNOWN:
            resume = ResumeCheckHalfMessageRequestHeader(half.offset_message_id)
            await self._requests.ask(address, RequestCode.RESUME_CHECK_HALF_MESSAGE, resume)
            return
        header = EndTransactionRequestHeader(
            producer_group=half.properties.get(PropertyName.PRODUCER_GROUP, ""),
            tran_state_table_offset=QueueOffset(half.queue_offset),
            commit_log_offset=PhysicalOffset(half.physical_offset),
            commit_or_rollback=state.value,
            from_transaction_check=True,
            msg_id=half.message_id,
            transaction_id=half.message_id,
        )
        await self._requests.ask(address, RequestCode.END_TRANSACTION, header)

    async def _find_given_up(self, transaction_id: str) -> MessageExt | None:
        """Return the newest message of this transaction that was given up."""
        found = None
        async with PullConsumer(TOOLS_GROUP, instance=self._entered()) as pull:
            for queue in await _queues(pull, CHECK_MAX_TOPIC):
                for message in await _read_all(self._entered(), pull, queue):
                    if transaction_id in (message.message_id, message.offset_message_id):
                        found = message
        return found


async def _queues(pull: PullConsumer, topic: str) -> tuple[MessageQueue, ...]:
    """Return the queues of a topic; none if no transaction has needed it yet."""
    try:
        return await pull.queues(topic)
    except NoRouteError:
        return ()


async def _read_broker(
    instance: ClientInstance, pull: PullConsumer, halves: MessageQueue
) -> list[UndecidedTransaction]:
    operations = halves._replace(topic=OP_HALF_TOPIC)
    await instance.routes.topic_route(OP_HALF_TOPIC)
    replay, last = Replay(), dict[int, MessageExt]()
    for half in await _read_all(instance, pull, halves):
        replay.add_half(half)
        last[half.queue_offset] = half
    for operation in await _read_all(instance, pull, operations):
        for queue_offset in settled_offsets(operation):
            if queue_offset in last:
                replay.add_operation(last[queue_offset], operation)
    halves_left = [last[queue_offset] for queue_offset in replay.undecided()]
    return [
        UndecidedTransaction(
            half.message_id,
            half.properties.get(PropertyName.PRODUCER_GROUP, ""),
            half.properties.get(PropertyName.REAL_TOPIC, ""),
            half.born_timestamp,
            checks_of(half),
            half,
        )
        for half in halves_left
    ]


async def _read_all(instance: ClientInstance, pull: PullConsumer, queue: MessageQueue) -> list[MessageExt]:
    """Read a queue from the group's stored offset to its end."""
    settled = await QueueRequests(instance, TRANSACTION_GROUP).committed(queue)
    begin = max(settled or 0, await pull.min_offset(queue))
    return await read_between(pull, queue, begin, await pull.max_offset(queue))
