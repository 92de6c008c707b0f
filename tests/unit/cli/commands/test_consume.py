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
from triomq.client import Message, Producer
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import UnsupportedCompressionError
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.record import decode_record
from triomq.testing import RunningBroker


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


async def test_lost_broker_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, rocketmq: RunningBroker, written: list[bytes]
) -> None:
    monkeypatch.setattr(consume, "_RETRY_S", 0.01)
    topic = rocketmq.new_topic(queues=1)
    async with Producer("P", namesrv=rocketmq.namesrv) as producer:
        await producer.send(Message(topic, b"x"))
    rocketmq.faults.refuse(code=ResponseCode.SYSTEM_ERROR, next=3, requests=[RequestCode.PULL_MESSAGE])
    options = parse(["consume", topic, "--namesrv", rocketmq.namesrv])
    assert isinstance(options, ConsumeOptions)
    await consume._read(options, Output(lambda message: message.body, 1))
    assert (written, [message.partition(" error=")[0] for message in caplog.messages]) == (
        [b"x"],
        ["pull failed, retrying broker=broker-a", "pull works again broker=broker-a"],
    )
