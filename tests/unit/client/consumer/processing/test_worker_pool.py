"""How many handlers run at once, and how that is changed while they do."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.consumer.fake_cluster import make_message
from tests.unit.client.consumer.service_bench import Bench, OrderlyBench
from triomq.protocol.codes import MessageSysFlag
from triomq.protocol.record.compression import LZ4, compress
from triomq.protocol.record.message import MessageExt


async def test_number_of_workers_follows_resize(autojump_clock: MockClock) -> None:
    async def on_message(_message: MessageExt) -> None:
        await trio.sleep(10)

    bench = Bench(on_message, max_concurrency=2)
    bench.pull(*range(30))
    bench.service.resize(3)  # before the start
    async with bench.running():
        await trio.sleep(1)
        assert bench.service.in_flight() == 3
        bench.service.resize(10)
        await trio.sleep(100)
        assert (len(bench.service.slots), bench.service.in_flight()) == (10, 0)
        bench.service.resize(4)
        await wait_all_tasks_blocked()
        assert (len(bench.service.slots), bench.service.concurrency) == (4, 4)


@pytest.mark.parametrize("kind", [Bench, OrderlyBench])
@pytest.mark.parametrize("takes_batch", [False, True])
async def test_handler_that_blocks_the_loop_is_reported_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, kind: type[Bench | OrderlyBench], takes_batch: bool
) -> None:
    async def on_message(message: MessageExt) -> None:
        await trio.sleep(5)
        if message.queue_offset:
            autojump_clock.jump(1.5)  # as time.sleep() would

    async def on_messages(messages: list[MessageExt], _context: object) -> None:
        for message in messages:
            await on_message(message)

    bench = kind(on_messages=on_messages) if takes_batch else kind(on_message)
    async with bench.running():
        bench.pull(0)
        await trio.sleep(6)
        assert not caplog.records
        bench.pull(1)
        await trio.sleep(10)
        bench.pull(2)
        await trio.sleep(10)
    (record,) = caplog.records
    assert record.getMessage().startswith("handler blocked the event loop: nothing else could run for about 1.")
    assert "to_thread.run_sync" in record.getMessage()


@pytest.mark.parametrize("kind", ["on_message", "plain", "on_messages"])
@pytest.mark.parametrize("make", [Bench, OrderlyBench])
async def test_body_whose_package_is_missing_is_no_failure(
    make: Callable[..., Any],
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bodies: list[bytes] = []
    calls = 0

    def plain(message: MessageExt) -> None:
        nonlocal calls
        calls += 1
        bodies.append(message.body)

    async def on_message(message: MessageExt) -> None:
        await trio.lowlevel.checkpoint()
        plain(message)

    async def on_messages(messages: list[MessageExt], _context: object) -> None:
        await on_message(messages[0])

    handler = {"on_message": on_message, "plain": plain, "on_messages": on_messages}[kind]
    settings = {"orderly_max_reconsume_times": 2, "resubmit_delay_s": 0.01, "suspend_queue_s": 0.01}
    bench = make(**{"on_message" if kind == "plain" else kind: handler}, **settings)
    message = make_message(7, compress(b"hello", LZ4))
    message.sys_flag |= MessageSysFlag.COMPRESSED | LZ4
    bench.queue.put([message])
    async with bench.running():
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "lz4.frame", None)
            bench.service.submit(bench.queue, [message])
            # A call that fails with the package missing must not end with the package installed.
            await bench.until(lambda: calls >= 5 and not bench.service.in_flight())
        assert not bench.sender.sent
        assert message.reconsume_times == 0
        assert bench.queue.consumed_offset() == 7
        await bench.until(lambda: bench.queue.consumed_offset() == 8)
    assert bodies == [b"hello"]
    (text,) = {record.message for record in caplog.records if record.levelname in ("WARNING", "ERROR")}
    assert text.startswith("messages are held until a package is installed: LZ4 bodies need a package: pip install")
