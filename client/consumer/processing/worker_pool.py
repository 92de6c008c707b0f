"""The workers of a consume service: a number of tasks that call the handler, which can change while they run."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeAlias

import trio

from triomq.client.consumer.config import ConsumeContext, ConsumerConfig, OrderlyContext
from triomq.client.consumer.handlers import ARE_GONE, LOGGER, RAISED, Handler
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.protocol.bodies.client import ConsumeResult
from triomq.protocol.errors import ProtocolError, UnsupportedCompressionError
from triomq.protocol.event_log import EventLog
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import REPLIER, MessageExt

#: How long workers may keep the event loop.
TURN_S: Final = 0.005
#: A handler that blocks the loop for longer is reported.
BLOCKED_S: Final = 1.0
#: Maximum messages that a worker or its thread takes at once, and how long a thread works on them: a hop costs
#: about 100 us.
MAX_SHARE: Final = 64
SHARE_S: Final = 0.02
_LOOP_CHECK_S: Final = 0.25
#: The error about messages that no handler can read here.
_HELD: Final = "messages are held until a package is installed: %s group=%s topic=%s queue_id=%d offset=%d messages=%d"
_BLOCKED: Final = (
    "handler blocked the event loop: nothing else could run for about %.1f s; call blocking code by "
    "trio.to_thread.run_sync, or use a plain function as handler, which runs in a thread group=%s topic=%s "
    "message_id=%s"
)


Work: TypeAlias = tuple[MessageExt, ProcessQueue]


@dataclass(slots=True, eq=False)
class Slot:
    """What a worker does now.

    Attributes:
        process_queue: whose messages the handler has.
        messages: which; empty if it has none.
        started_at: since when.
        retired: there are too many workers: this one ends after its present work.
        share: concurrent consumption: what the worker's thread takes next; any task may take it away.
        share_limit: maximum messages of the next share: as many as a thread had time for.
        share_ends: orderly consumption: when other queues get their turn.
    """

    process_queue: ProcessQueue | None = None
    messages: Sequence[MessageExt] = ()
    started_at: float = 0.0
    retired: bool = False
    share: deque[Work] = field(default_factory=deque)
    share_limit: int = 1
    share_ends: float = 0.0

    def take_share(self) -> list[Work]:
        """Take away what the worker's thread did not begin; safe beside the thread."""
        taken = []
        while True:
            try:
                taken.append(self.share.popleft())
            except IndexError:
                return taken


def _missing_package(messages: Sequence[MessageExt]) -> UnsupportedCompressionError | None:
    """Return the error of a body whose compression needs a package that is not installed; ``None``: all can be read."""
    for message in messages:
        try:
            _ = message.body
        except UnsupportedCompressionError as exc:
            return exc
        except ProtocolError:
            continue
    return None


class WorkerPool(ABC):
    """Runs workers: :meth:`run` it in a separate nursery.

    All workers together keep the event loop from other tasks for one turn at most.

    Attributes:
        context: what a batch handler gets beside its messages.
        handler: what the workers call.
        config: settings.
        concurrency: number of workers.
        slots: one for each worker.
        threads: limits the threads of plain functions.
        stopped: the handler gets no new message.
        replier: sends the handler's replies to requests.
        now: trio's clock.
        turn_ends: after this time workers call :meth:`yield_turn` before the next message.
    """

    context: ClassVar[type[ConsumeContext | OrderlyContext]]

    def __init__(self, handler: Handler, config: ConsumerConfig) -> None:
        self.handler = handler
        self.config = config
        self.concurrency = concurrency = config.workers
        self._has_reported_block = False
        self.slots: list[Slot] = []
        self.threads = trio.CapacityLimiter(concurrency)
        self.stopped = False
        self.parked = trio.lowlevel.ParkingLot()
        self.replier: Callable[[MessageExt, bytes], Any] | None = None
        self._nursery: trio.Nursery | None = None
        self._held = EventLog(LOGGER, _HELD)
        self.now: Callable[[], float] = trio.current_time
        self.turn_ends = 0.0
        self._turn = 0
        self._ran_at = 0.0  # when the loop last ran other tasks, to _LOOP_CHECK_S

    @abstractmethod
    async def work(self, slot: Slot) -> None:
        """Call the handler until the service is stopped or the slot is retired."""

    @abstractmethod
    def direct_result(self, status: object) -> ConsumeResult:
        """Translate a handler's result for a direct call."""

    async def maintain(self) -> None:
        """Do the periodic work; runs until cancelled."""
        while self.handler.is_async:
            self._ran_at = self.now()
            await trio.sleep(_LOOP_CHECK_S)

    async def run(self) -> None:
        """Run the workers until the service is stopped and running handlers have returned."""
        self.now = trio.lowlevel.current_clock().current_time  # trio.current_time() looks it up each time
        async with trio.open_nursery() as self._nursery:
            self.resize(self.concurrency)

    def resize(self, concurrency: int) -> None:
        """Change the number of workers; surplus ones end when their handler returns."""
        self.concurrency = concurrency
        self.threads.total_tokens = concurrency
        for index, slot in enumerate(self.slots):
            slot.retired = index >= concurrency
        if self._nursery is not None:
            while len(self.slots) < concurrency:
                slot = Slot()
                self.slots.append(slot)
                self._nursery.start_soon(self._live, slot)
        self.parked.unpark_all()

    async def yield_turn(self) -> None:
        """Let other tasks run; the first worker that resumes opens the next turn.

        A worker that resumes later in the same pass of the scheduler, when that turn is used up, yields again: so
        sockets are polled after one turn, not after one turn per worker.
        """
        while True:
            turn = self._turn
            await trio.lowlevel.checkpoint()
            now = self.now()
            if now <= self.turn_ends:
                return
            if turn == self._turn:
                self._turn += 1
                self.turn_ends = now + TURN_S
                return

    def in_flight(self, process_queue: ProcessQueue | None = None) -> int:
        """Count the messages that handlers are processing, of one queue or of all."""
        slots = [slot for slot in self.slots if process_queue in (None, slot.process_queue)]
        return sum(len(slot.messages) for slot in slots)

    def log_raised(self, messages: Sequence[MessageExt], error: Exception) -> None:
        """Log the call that has just raised; may be called in any thread."""
        if _missing_package(messages) is None:
            self._log_raised(messages, error)

    def _log_raised(self, messages: Sequence[MessageExt], _error: Exception) -> None:
        LOGGER.warning(RAISED, *self.handler.failure(messages), exc_info=True)  # its callers handle one

    def holds(self, messages: Sequence[MessageExt]) -> bool:
        """Whether failed messages wait for a missing package, which is no failure; other messages are handled."""
        if (error := _missing_package(messages)) is None:
            return False
        group, first = self.handler.group, messages[0]
        place = first.topic, first.queue_id, first.queue_offset
        self._held.occurred(error, group, *place, len(messages), key=first.topic, cause=str(error))
        return True

    def report_block(self, began: float, messages: Sequence[MessageExt]) -> None:
        """Warn, once, if a call of a coroutine function that began at a time has blocked the loop."""
        blocked_s = self.now() - max(began, self._ran_at)
        if self.handler.is_async and not self._has_reported_block and blocked_s > BLOCKED_S:
            self._has_reported_block = True
            LOGGER.warning(_BLOCKED, blocked_s, self.handler.group, messages[0].topic, messages[0].message_id)

    async def consume_directly(self, message: MessageExt, queue: MessageQueue) -> tuple[ConsumeResult, str]:
        """Call the handler with one message, without effect on queues and offsets; return its result and a remark."""
        arguments = ([message], self.context(queue)) if self.handler.takes_batch else (message,)
        self._offer_reply()
        try:
            return self.direct_result(await self.call(*arguments)), ""
        except Exception as exc:  # noqa: BLE001  # boundary: foreign code may raise anything; Cancelled passes
            LOGGER.warning(RAISED, *self.handler._replace(after_failure=ARE_GONE).failure([message]), exc_info=True)
            return ConsumeResult.CR_THROW_EXCEPTION, f"{type(exc).__name__}: {exc}"

    def _offer_reply(self) -> None:
        """Let the handlers that this task calls reply to messages."""
        if self.replier is not None:
            REPLIER.set(self.replier)

    async def call(self, *arguments: object) -> object:
        """Call the handler, in a thread if it is a plain function."""
        function = self.handler.function
        return await (function(*arguments) if self.handler.is_async else self.call_in_thread(function, *arguments))

    async def call_in_thread(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Call a plain function in one of the service's threads; a cancelled call leaves its thread running."""
        return await trio.to_thread.run_sync(function, *arguments, abandon_on_cancel=True, limiter=self.threads)

    async def _live(self, slot: Slot) -> None:
        self._offer_reply()
        try:
            await self.work(slot)
        finally:
            self.slots.remove(slot)
