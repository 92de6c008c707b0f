"""Transactional messages: sent first as half messages, delivered when their producer commits them.

Source: behaviour.md A.6, B.3, wire.md 5.11; DefaultMQProducerImpl.java, TransactionMQProducer.java.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, ClassVar, Final, TypeAlias, TypeVar
from warnings import warn

import trio

from triomq.client.cluster.instance import ClientInstance, use_instance
from triomq.client.config import ClientConfig
from triomq.client.nursery import OpenOnce, is_async, open_service_nursery
from triomq.client.producer.config import STATUS_BY_CODE, ProducerConfig, SendResult, SendStatus
from triomq.client.producer.producer import Producer
from triomq.protocol.codes import MessageSysFlag, RequestCode
from triomq.protocol.errors import REMOTE_ERRORS, ClientError, MessageIllegalError, WrongTypeError
from triomq.protocol.message_queue import PhysicalOffset, QueueOffset
from triomq.protocol.names import AUTO_CREATE_TOPIC, validate_group
from triomq.protocol.record.message import Message, MessageExt
from triomq.protocol.record.message_id import parse_offset_message_id
from triomq.protocol.requests.messages import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from triomq.protocol.typed import check_callable, checked

LOGGER: Final = logging.getLogger("triomq.client.producer.transaction")

_DECIDE_S: Final = 3.0
_TRIES: Final = 3
_NO_STATE: Final = ", which is no TransactionState"
_PAUSE_S: Final = 0.2
_LATE: Final = (
    "decision is flushed late: it is in force, and if the broker loses its power before, it asks again broker=%s "
    "message_id=%s status=%s"
)
_FIND_AGAIN_S: Final = 1.0
#: Concurrent checks; a broker repeats those that are refused.
_MAX_CHECKS: Final = 16
_MAX_WAITING_CHECKS: Final = 1024
_MAX_WAITING_BYTES: Final = 16 * 1024**2

_Asked = TypeVar("_Asked")
_Asking: TypeAlias = tuple[str, CheckTransactionStateRequestHeader, MessageExt]


class TransactionState(Enum):
    """What becomes of a transactional message."""

    COMMIT = int(MessageSysFlag.TRANSACTION_COMMIT)  # it is delivered
    ROLLBACK = int(MessageSysFlag.TRANSACTION_ROLLBACK)  # it is never delivered
    UNKNOWN = 0  # the broker asks a producer of the group later


@dataclass(slots=True, eq=False)
class Transaction:
    """A message whose half is stored.

    Attributes:
        message: the message.
        result: where its half is stored.
        state: the decision.
        is_acknowledged: whether the broker has confirmed the decision; if not, it asks about the message later.
    """

    message: Message
    result: SendResult
    state: TransactionState = TransactionState.UNKNOWN
    is_acknowledged: bool = False

    @property
    def id(self) -> str:
        """The message's unique id: ``message_id`` of the message that ``check`` gets."""
        return self.result.message_id


Execute: TypeAlias = Callable[[Transaction], Awaitable[TransactionState]] | Callable[[Transaction], TransactionState]
"""Runs the local transaction; a plain function runs in a worker thread."""

Check: TypeAlias = Callable[[MessageExt], Awaitable[TransactionState]] | Callable[[MessageExt], TransactionState]
"""Returns how the local transaction of a message ended; a plain function runs in a worker thread."""


class HalfProducer(Producer):
    """Sends the halves of transactions."""

    async def send_half(self, message: Message) -> SendResult:
        """Send a message as the half of a transaction.

        Raises:
            MessageIllegalError, IllegalNameError, NoRouteError, BrokerResponseError, ClientError: as :meth:`send`.
        """
        delivery = self._entered()
        added = f"\x02TRAN_MSG\x01true\x02PGROUP\x01{delivery.namespace.wrap(self.group)}"
        return await delivery.send(message.topic, await self._prepare(message, added), None)


class TransactionProducer(OpenOnce):
    """Sends messages that are delivered only if a local transaction succeeds.

    ::

        async def check(message: MessageExt) -> TransactionState:
            return COMMIT if await orders.exists(message.keys[0]) else ROLLBACK


        async with TransactionProducer("group", namesrv="127.0.0.1:9876", check=check) as producer:
            async with producer.transaction(Message("Topic", b"body", keys="4711")):
                await orders.insert("4711")

    A broker asks any producer of the group about undecided messages, so all of them must be able to
    check each other's messages.
    """

    @checked
    def __init__(
        self,
        group: str,
        *,
        check: Check,
        topics: Sequence[str] = (),
        namesrv: str | Sequence[str] | None = None,
        instance: ClientInstance | None = None,
        config: ClientConfig | None = None,
        settings: ProducerConfig | None = None,
        trace: bool | str = False,
    ) -> None:
        """Make a producer; it connects when it is entered.

        Args:
            group: name of the producer group.
            check: returns how the local transaction of a message ended.
            topics: topics whose brokers may ask before the first message is sent; needed after a restart if brokers
                create no topics by sending.
            namesrv: name servers, ``"host:port;host:port"`` or a sequence; not with ``instance``.
            instance: connections to share with other clients; must outlive the producer.
            config: settings of the connections; not with ``instance``.
            settings: of the producer; ``None``: the defaults.
            trace: record messages and decisions, in ``RMQ_SYS_TRACE_TOPIC`` or the topic named here.

        Raises:
            IllegalNameError: the name of the group is not valid.
        """
        self.group = group
        check_callable("check", check, "message")
        self._check = check
        self._topics = tuple(topics)
        self._use_instance = partial(use_instance, namesrv, config, instance)
        self._producer: HalfProducer
        validate_group(group)
        self._make_producer = partial(HalfProducer, group, settings=settings, trace=trace)
        self._instance: ClientInstance
        self._waiting_bytes = 0  # of messages to be checked
        self._send_check: trio.MemorySendChannel[_Asking]

    @asynccontextmanager
    async def _run(self) -> AsyncGenerator[None, None]:
        async with self._use_instance() as instance:
            self._instance = instance
            self._producer = self._make_producer(instance=instance)
            self._send_check, receive = trio.open_memory_channel[_Asking](_MAX_WAITING_CHECKS)
            async with self._producer, open_service_nursery() as nursery:
                checkers = instance.groups.checkers
                if self.group in checkers:
                    raise ClientError(f"transactional producer group {self.group!r} is on this instance already")
                checkers[self.group] = self._take_check
                try:
                    for _ in range(_MAX_CHECKS):
                        nursery.start_soon(self._check_each, receive)
                    nursery.start_soon(self._find_brokers)
                    yield
                finally:
                    del checkers[self.group]

    async def _find_brokers(self) -> None:
        """Keep the brokers known, so that they get heartbeats and can ask: also those that start later."""
        while True:
            pause_s = self._instance.requests.config.poll_namesrv_interval_s
            for topic in (AUTO_CREATE_TOPIC, *self._topics):
                try:
                    await self._instance.routes.find(topic, refresh=True)  # new brokers get a heartbeat
                except REMOTE_ERRORS as exc:
                    LOGGER.info("no route of topic %s: %s", topic, exc)
                    pause_s = min(pause_s, _FIND_AGAIN_S)
            await trio.sleep(pause_s)

    async def send(self, message: Message, execute: Execute) -> Transaction:
        """Store a message, run the local transaction, and send its result to the broker.

        Args:
            message: the message; it cannot be delayed.
            execute: runs the local transaction; an exception is logged and means ``UNKNOWN``.

        Returns:
            The transaction with its state.

        Raises:
            WrongTypeError: ``execute`` returned no ``TransactionState``; the message is stored and undecided.
            MessageIllegalError, IllegalNameError, NoRouteError, BrokerResponseError, ClientError: the message is not
                stored, as ``Producer.send``; ``execute`` has not run.
        """
        check_callable("execute", execute, "transaction")
        transaction = await self.begin(message)
        state, remark = await _ask(execute, transaction, f"message_id={transaction.id}")
        await self.decide(transaction, state, remark)
        if remark is not None and remark.endswith(_NO_STATE):
            raise WrongTypeError(f"execute returned {remark}; its transaction stays undecided until check decides it")
        return transaction

    def transaction(self, message: Message) -> "TransactionBlock":
        """Store a message, and commit it when the block ends, or roll it back if the block raises.

        If the block is cancelled, nothing is decided: the broker asks ``check`` later, as after a crash.  Use it as
        ``async with``, or nothing happens but a warning.

        Raises:
            MessageIllegalError, IllegalNameError, NoRouteError, BrokerResponseError, ClientError: as :meth:`send`.
        """
        return TransactionBlock(partial(self.begin, message), self.decide)

    async def begin(self, message: Message) -> Transaction:
        """Store a message that is delivered once it is committed; call :meth:`decide` afterwards.

        Raises:
            MessageIllegalError, IllegalNameError, NoRouteError, BrokerResponseError, ClientError: as :meth:`send`.
        """
        if message.is_delayed:
            raise MessageIllegalError("a transactional message cannot be delayed")
        result = await self._producer.send_half(message)
        if result.status is not SendStatus.SEND_OK:  # not safe yet: the local transaction may not rely on it
            await self.decide(Transaction(message, result), TransactionState.ROLLBACK)
            raise ClientError(f"half message is not stored safely: {result.status.value}; it was rolled back")
        return Transaction(message, result)

    async def decide(self, transaction: Transaction, state: TransactionState, remark: str | None = None) -> None:
        """Send the decision about a transaction to the broker.

        A failure is logged, and ``is_acknowledged`` stays false: the broker asks ``check`` then.

        Args:
            transaction: from :meth:`begin`.
            state: how it ended; ``UNKNOWN`` sends nothing to the broker.
            remark: reason for the broker's log.
        """
        transaction.state = state
        if state is TransactionState.UNKNOWN:
            await trio.lowlevel.checkpoint()
            return
        result = transaction.result
        header = EndTransactionRequestHeader(
            producer_group=self.group,
            tran_state_table_offset=QueueOffset(result.queue_offset),
            commit_log_offset=PhysicalOffset(parse_offset_message_id(result.offset_message_id)[2]),
            commit_or_rollback=state.value,
            msg_id=result.message_id,
            transaction_id=result.message_id,
            broker_name=result.queue.broker_name,
        )
        with trio.move_on_after(_DECIDE_S, shield=True):  # the decision is made: it must reach the broker
            for attempt in range(_TRIES):
                address = self._instance.brokers.find(result.queue.broker_name)
                answer = None if address is None else await self._end(address, header, remark, transaction.message)
                if answer is not None:
                    transaction.is_acknowledged = answer
                    return
                await trio.sleep(_PAUSE_S * 2**attempt)
        LOGGER.warning("decision not acknowledged broker=%s message_id=%s", result.queue.broker_name, transaction.id)

    async def _end(
        self, address: str, header: EndTransactionRequestHeader, remark: str | None, message: Message | MessageExt
    ) -> bool | None:
        """Send a decision; return whether the broker accepted it, ``None`` without an answer.

        It is accepted, too, if the broker has stored it and its disk or slave takes longer; Apache's brokers answer
        SUCCESS then.  Source: EndTransactionProcessor.sendFinalMessage.
        """
        command = self._instance.requests.command(RequestCode.END_TRANSACTION, header)
        command.remark = remark
        try:
            response = await self._instance.requests.invoke(address, command)
        except ClientError as exc:
            LOGGER.info("decision not sent broker=%s message_id=%s error=%s", address, header.msg_id, exc)
            return None
        if (status := STATUS_BY_CODE.get(response.code)) is not None:
            if status is not SendStatus.SEND_OK:
                LOGGER.warning(_LATE, address, header.msg_id, status.value)
            if self._producer.tracer is not None:
                self._producer.tracer.decided(address, header, message)
            return True
        LOGGER.warning("decision rejected broker=%s message_id=%s: %s", address, header.msg_id, response.remark)
        return False

    def _take_check(self, address: str, header: CheckTransactionStateRequestHeader, message: MessageExt) -> None:
        if self._waiting_bytes <= _MAX_WAITING_BYTES:
            with suppress(trio.WouldBlock):
                self._send_check.send_nowait((address, header, message))
                self._waiting_bytes += message.store_size
                return
        LOGGER.warning("too many checks, the broker repeats this one message_id=%s", message.message_id)

    async def _check_each(self, receive: trio.MemoryReceiveChannel[_Asking]) -> None:
        """Answer the brokers' checks, one after the other."""
        async for address, asked, message in receive:
            self._waiting_bytes -= message.store_size
            state, remark = await _ask(self._check, message, f"message_id={message.message_id}")
            if state is TransactionState.UNKNOWN:
                continue
            header = EndTransactionRequestHeader(
                producer_group=self.group,
                tran_state_table_offset=asked.tran_state_table_offset,
                commit_log_offset=asked.commit_log_offset,
                commit_or_rollback=state.value,
                from_transaction_check=True,
                msg_id=message.message_id,
                transaction_id=asked.transaction_id,
                broker_name=asked.broker_name,
            )
            await self._end(address, header, remark, message)  # the broker asks again if it fails


class TransactionBlock:
    """A block whose end decides a transaction: see :meth:`TransactionProducer.transaction`."""

    _how: ClassVar[str] = "async with"

    def __init__(self, begin: Callable[[], Any], decide: Callable[[Transaction, TransactionState], Any]) -> None:
        """Take the methods of a producer, of any API."""
        self._begin: Callable[[], Any] | None = begin
        self._decide = decide
        self._transaction: Transaction

    async def __aenter__(self) -> Transaction:
        self._transaction = await self._take()()
        return self._transaction

    async def __aexit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if (state := decision(error)) is not None:
            await self._decide(self._transaction, state)  # noqa: ASYNC102  # a decision has a time limit, and a cancelled one is checked for later

    def _take(self) -> Callable[[], Any]:
        begin, self._begin = self._begin, None
        if begin is None:
            raise ClientError("a transaction can be entered once only: make a new one")
        return begin

    def __del__(self) -> None:
        if self._begin is not None:
            warn(f"transaction(...) was not entered and sent nothing: use it as {self._how}", RuntimeWarning, 2)


def decision(error: BaseException | None) -> TransactionState | None:
    """Return the decision at the end of a block, ``None``: a block that is cancelled decides nothing."""
    if error is None:
        return TransactionState.COMMIT
    return TransactionState.ROLLBACK if isinstance(error, Exception) else None


async def _ask(function: Callable[[_Asked], Any], argument: _Asked, place: str) -> tuple[TransactionState, str | None]:
    """Call a user's function; return its state, and the reason if that is ``UNKNOWN`` because of an error."""
    try:
        state = await function(argument) if is_async(function) else await trio.to_thread.run_sync(function, argument)
    except Exception as exc:  # boundary: the function is the user's
        LOGGER.exception("local transaction or its check raised, it stays undecided %s", place)
        return TransactionState.UNKNOWN, repr(exc)
    if not isinstance(state, TransactionState):
        LOGGER.error("local transaction or its check returned %r, which is no TransactionState %s", state, place)
        return TransactionState.UNKNOWN, f"{state!r:.80}{_NO_STATE}"
    return state, None
