"""A scriptable broker and name server in one, inside the test's own trio loop, on a free loopback port."""

import inspect
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress

import trio

from triomq.protocol.bodies.client import ConsumerIdList, HeartbeatData
from triomq.protocol.bodies.route import BrokerData, QueueData, TopicList, TopicRouteData
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import FrameSplitter

Handler = Callable[[RemotingCommand], RemotingCommand | Awaitable[RemotingCommand | None] | None]


def answering(body: bytes = b"") -> Callable[[RemotingCommand], RemotingCommand]:
    """Return a handler that succeeds with a body."""
    return lambda command: command.reply(body=body)


class FakeBroker:
    """Answers requests by table, records them, and asks clients for things.

    Attributes:
        address: ``127.0.0.1:port``; name server and broker at once.
        name: the broker's name in its routes.
        requests: all requests so far, in order.
        routes: topic to route; see :meth:`add_topic`.
        handlers: request code to a function of the request that returns the answer, ``None`` for no answer, or
            an awaitable of these, which does not hold up other requests; see :meth:`on`.
        consumer_ids: group to client ids, the answer to 38.
        connected: how many connections were accepted so far.
        tls: what new connections must speak; ``None``: plain text.
    """

    def __init__(self, nursery: trio.Nursery, name: str) -> None:
        self.name = name
        self.address = ""
        self.requests: list[RemotingCommand] = []
        self.routes: dict[str, TopicRouteData] = {}
        self.consumer_ids: dict[str, list[str]] = {}
        self.connected = 0
        self.tls: ssl.SSLContext | None = None
        self.handlers: dict[int, Handler] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.answer_route,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topic_list,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._consumer_list,
            RequestCode.HEART_BEAT: lambda command: command.reply(),
            RequestCode.UNREGISTER_CLIENT: lambda command: command.reply(),
            RequestCode.SEND_MESSAGE_V2: self.answer_send,
            RequestCode.SEND_BATCH_MESSAGE: self.answer_send,
        }
        self._nursery = nursery
        self._streams: list[trio.abc.Stream] = []
        self._sending = trio.Lock()
        self._listeners: list[trio.SocketListener] = []
        self._listening: trio.CancelScope | None = None
        self._offsets: Counter[tuple[str, str]] = Counter()
        self._arrived = trio.Event()

    async def start(self, port: int = 0) -> None:
        """Listen; again on the same port after :meth:`stop`."""
        self._listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
        bound = self._listeners[0].socket.getsockname()[1]
        self.address = f"127.0.0.1:{bound}"
        self._listening = trio.CancelScope()
        self._nursery.start_soon(self._accept, self._listening)
        await trio.testing.wait_all_tasks_blocked()

    async def stop(self) -> None:
        """Listen no more and close all connections."""
        assert self._listening is not None
        self._listening.cancel()
        for listener in self._listeners:
            await listener.aclose()
        await self.drop()

    async def restart(self) -> None:
        """Listen again where it was stopped."""
        await self.start(int(self.address.rpartition(":")[2]))

    async def drop(self) -> None:
        """Close all connections; new ones are accepted."""
        streams, self._streams = self._streams, []
        for stream in streams:
            await stream.aclose()

    def add_topic(self, topic: str, queues: int = 4, perm: int = 6, *more: "FakeBroker") -> None:
        """Give a topic queues on this broker and on ``more``; this one answers for it as name server."""
        brokers = (self, *more)
        self.routes[topic] = TopicRouteData(
            queue_datas=[QueueData(broker.name, queues, queues, perm) for broker in brokers],
            broker_datas=[BrokerData("DefaultCluster", broker.name, {0: broker.address}) for broker in brokers],
        )

    def on(self, code: int, handler: Handler) -> None:
        """Answer a request code with ``handler``."""
        self.handlers[code] = handler

    def fail(self, code: int, response_code: int, remark: str = "no", times: int = 2**31) -> None:
        """Answer a request code with an error, ``times`` times, then as before."""
        before = self.handlers.get(code)
        left = times

        def handler(command: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
            nonlocal left
            left -= 1
            if left < 0:
                assert before is not None
                return before(command)
            return command.reply(response_code, remark=remark)

        self.handlers[code] = handler

    def of(self, code: int) -> list[RemotingCommand]:
        """Return the recorded requests with a code."""
        return [command for command in self.requests if command.code == code]

    def heartbeats(self) -> list[HeartbeatData]:
        """Return the bodies of the recorded heartbeats."""
        return [HeartbeatData.decode(bytes(command.body)) for command in self.of(RequestCode.HEART_BEAT)]

    async def wait_for(self, code: int, count: int = 1) -> list[RemotingCommand]:
        """Wait until at least ``count`` requests with a code were recorded; return them."""
        while len(found := self.of(code)) < count:
            await self._arrived.wait()
        return found

    async def push(self, command: RemotingCommand) -> None:
        """Send a request, or anything else, to all connected clients."""
        await self.push_bytes(command.encode())

    async def push_bytes(self, data: bytes) -> None:
        """Send bytes to all connected clients."""
        for stream in list(self._streams):
            async with self._sending:
                await stream.send_all(data)

    async def _accept(self, scope: trio.CancelScope) -> None:
        with scope:
            await trio.serve_listeners(self._serve, self._listeners, handler_nursery=self._nursery)

    async def _serve(self, accepted: trio.SocketStream) -> None:
        self.connected += 1
        stream: trio.abc.Stream = accepted
        if self.tls is not None:
            stream = trio.SSLStream(accepted, self.tls, server_side=True, https_compatible=True)
        self._streams.append(stream)
        splitter = FrameSplitter()
        try:
            while data := await stream.receive_some():
                frames, _ = splitter.split(data)
                for frame in frames:
                    await self._take(stream, RemotingCommand.decode(frame))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            if stream in self._streams:
                self._streams.remove(stream)
            await trio.aclose_forcefully(stream)

    async def _take(self, stream: trio.abc.Stream, command: RemotingCommand) -> None:
        self.requests.append(command)
        self._arrived.set()
        self._arrived = trio.Event()
        if command.is_response:
            return
        handler = self.handlers.get(command.code)
        if handler is None:
            answer: RemotingCommand | None = command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="fake")
        else:
            made = handler(command)
            if inspect.isawaitable(made):
                self._nursery.start_soon(self._answer_later, stream, made)
                return
            assert made is None or isinstance(made, RemotingCommand)
            answer = made
        await self._answer(stream, command, answer)

    async def _answer_later(self, stream: trio.abc.Stream, made: Awaitable[RemotingCommand | None]) -> None:
        answer = await made
        if answer is not None:
            await self._answer(stream, None, answer)

    async def _answer(
        self, stream: trio.abc.Stream, command: RemotingCommand | None, answer: RemotingCommand | None
    ) -> None:
        if answer is None or (command is not None and command.is_oneway):
            return
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with self._sending:
                await stream.send_all(answer.encode())

    def answer_route(self, command: RemotingCommand) -> RemotingCommand:
        """Answer 105 from the routes."""
        topic = command.ext_fields["topic"]
        route = self.routes.get(topic)
        if route is None:
            return command.reply(
                ResponseCode.TOPIC_NOT_EXIST, remark=f"No topic route info in name server for the topic: {topic}"
            )
        return command.reply(body=route.encode())

    def _topic_list(self, command: RemotingCommand) -> RemotingCommand:
        return command.reply(body=TopicList(list(self.routes)).encode())

    def _consumer_list(self, command: RemotingCommand) -> RemotingCommand:
        group = command.ext_fields["consumerGroup"]
        return command.reply(body=ConsumerIdList(self.consumer_ids.get(group, [])).encode())

    def answer_send(self, command: RemotingCommand) -> RemotingCommand:
        """Answer 310 and 320: stored, with the next offset of the queue."""
        topic, queue_id = command.ext_fields["b"], command.ext_fields["e"]
        queue_offset = self._offsets[topic, queue_id]
        self._offsets[topic, queue_id] += 1
        return command.reply(
            ext_fields={
                "msgId": f"7F00000100002A9F{queue_offset:016X}",
                "queueId": queue_id,
                "queueOffset": str(queue_offset),
                "MSG_REGION": "DefaultRegion",
                "TRACE_ON": "true",
            }
        )


class _CancelAtPause(trio.abc.Instrument):
    """Cancels a scope when a task has paused for the n-th time."""

    def __init__(self, task: trio.lowlevel.Task, scope: trio.CancelScope, count: int) -> None:
        self._task = task
        self._scope = scope
        self._left = count

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._left -= 1
            if self._left == 0:
                self._scope.cancel()


async def _stopped_at_pause(count: int, function: Callable[[], Awaitable[object]]) -> bool:
    """Run in a task that is cancelled at its n-th pause, or from the start; return whether that stopped it."""
    stopped = False

    async def run() -> None:
        nonlocal stopped
        with trio.CancelScope() as scope:
            instrument = _CancelAtPause(trio.lowlevel.current_task(), scope, count)
            trio.lowlevel.add_instrument(instrument)
            if count == 0:
                scope.cancel()
            try:
                await function()
            finally:
                trio.lowlevel.remove_instrument(instrument)
        stopped = scope.cancelled_caught

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
    return stopped


async def run_cancelled_at_every_await(function: Callable[[], Awaitable[object]]) -> AsyncGenerator[int, None]:
    count = 0
    while await _stopped_at_pause(count, function):
        yield count
        count += 1
    assert count >= 2, "the function does not pause, or is not cancelled where it does"


CancelledAtEveryAwait = Callable[[Callable[[], Awaitable[object]]], AsyncGenerator[int, None]]


BrokerFactory = Callable[[str], Awaitable[FakeBroker]]
