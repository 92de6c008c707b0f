import errno
import threading

import pytest
import trio
from trio.testing import MockClock

from tests.records import make_record
from triomq.cli.arguments.arguments import parse
from triomq.cli.arguments.options import ConsumeOptions
from triomq.cli.commands import consume
from triomq.cli.commands.consume import Output
from triomq.cli.errors import UsageError
from triomq.client import MessageQueue
from triomq.client.consumer.pull import PullResult, PullStatus
from triomq.protocol.errors import ConnectError, UnsupportedCompressionError
from triomq.protocol.message_queue import QueueOffset
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.record import decode_record


@pytest.fixture(autouse=True)
def written(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What goes to stdout."""
    found: list[bytes] = []
    monkeypatch.setattr(consume, "_write", found.append)
    return found


def stored(count: int) -> list[MessageExt]:
    return [decode_record(make_record(queue_offset=number, body=b"%d" % number)) for number in range(count)]


async def test_no_more_than_the_count_is_written(written: list[bytes]) -> None:
    output = Output(lambda message: message.body, 3)
    assert await output.write(stored(2))
    assert not output.done.is_set()
    assert not await output.write(stored(2))
    assert output.done.is_set()
    assert not await output.write(stored(1))
    assert (written, output.written) == ([b"01", b"0"], 3)


async def test_without_a_count_everything_is_written(written: list[bytes]) -> None:
    output = Output(lambda message: message.body, None)
    assert await output.write(stored(5))
    assert (written, output.done.is_set()) == ([b"01234"], False)


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(errno.ENOSPC, "no space")])
async def test_a_write_error_ends_the_output(error: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_data: bytes) -> None:
        raise error

    monkeypatch.setattr(consume, "_write", fail)
    output = Output(lambda message: message.body, None)
    assert not await output.write(stored(1))
    assert (output.error, output.written) == (error, 0)
    await output.done.wait()


async def test_unformattable_message_ends_the_output(written: list[bytes]) -> None:
    error = UnsupportedCompressionError("a package is missing")

    def fail(_message: MessageExt) -> bytes:
        raise error

    output = Output(fail, None)
    assert not await output.write(stored(1))
    assert (output.error, output.done.is_set(), written) == (error, True, [])


async def test_idle_time_counts_from_the_last_message(autojump_clock: MockClock) -> None:
    output = Output(lambda message: message.body, None)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(output.end_when_idle, 5)
        await trio.sleep(3)
        output.last_at = trio.current_time()
        await output.done.wait()
    assert trio.current_time() - began == 8


async def test_time_of_a_slow_reader_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that wait for it are written, however long it takes, and the time without any counts from then on."""
    pause = threading.Event()
    monkeypatch.setattr(consume, "_write", lambda _data: pause.wait(10))
    output = Output(lambda message: message.body, None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(output.write, stored(1))
        nursery.start_soon(output.write, stored(1))
        nursery.start_soon(output.end_when_idle, 0.1)
        await trio.sleep(0.3)
        assert not output.done.is_set()
        pause.set()
        await output.done.wait()
    assert output.written == 2


@pytest.mark.parametrize("words", [["--orderly"], ["--broadcast"], ["--instance-name", "x"]])
def test_options_for_members_need_a_group(words: list[str]) -> None:
    options = parse(["consume", "T", *words])
    assert isinstance(options, ConsumeOptions)
    with pytest.raises(UsageError, match=f"^{words[0]}: .*give --group"):
        consume.run(options)


class FakePull:
    """A pull consumer of two queues whose broker cannot be reached three times."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.failures = 3

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        pass

    async def queues(self, topic: str) -> list[MessageQueue]:
        return [MessageQueue(topic, "broker-a", queue_id) for queue_id in range(2)]

    async def min_offset(self, _queue: MessageQueue) -> int:
        return 0

    async def pull(self, _queue: MessageQueue, _offset: int, *_: object) -> PullResult:
        await trio.lowlevel.checkpoint()
        self.failures -= 1
        if self.failures >= 0:
            raise ConnectError("no connection")
        if self.failures < -2:
            self.output.done.set()
            await trio.sleep_forever()
        return PullResult(PullStatus.NO_NEW_MESSAGE, [], QueueOffset(0), QueueOffset(0), QueueOffset(0), 0)


async def test_lost_broker_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    output = Output(lambda message: message.body, None)

    monkeypatch.setattr(consume, "PullConsumer", lambda *_, **__: FakePull(output))
    options = parse(["consume", "T", "--namesrv", "a:1", "--from", "earliest"])
    assert isinstance(options, ConsumeOptions)
    async with trio.open_nursery() as nursery:
        await consume._read(options, output)
        nursery.cancel_scope.cancel()
    assert caplog.messages == [
        "pull failed, retrying broker=broker-a error=no connection",
        "pull works again broker=broker-a",
    ]
