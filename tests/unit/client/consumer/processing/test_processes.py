"""Handlers in worker processes; ``tests/integration/test_process_handlers.py`` has them in consumers."""

import functools
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests import process_handlers
from tests.unit.client.consumer.fake_cluster import make_message
from tests.unit.client.consumer.service_bench import Bench, OrderlyBench
from triomq.client.consumer.config import ConsumeContext, ConsumeStatus, OrderlyContext
from triomq.client.consumer.handlers import Handler
from triomq.client.consumer.processing.processes import ProcessPool
from triomq.protocol.bodies.client import ConsumeResult
from triomq.protocol.errors import ClientError, ConfigError, HandlerProcessError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import REPLIER, MessageExt

ROOT = Path(__file__).parents[5]
QUEUE = MessageQueue("T", "broker-a", 0)


def message(body: str) -> MessageExt:
    made = make_message(0)
    made.stored_body = body.encode()
    return made


def pool_of(function: Any = process_handlers.on_message, *, takes_batch: bool = False) -> ProcessPool:
    return ProcessPool(Handler.of(None, function, "G") if takes_batch else Handler.of(function, None, "G"))


@pytest.fixture
async def pool() -> AsyncIterator[ProcessPool]:
    made = pool_of()
    async with made.open():
        yield made


async def call(pool: ProcessPool, body: str) -> object:
    return await trio.to_thread.run_sync(pool.call, message(body), abandon_on_cancel=True)


def processes_of(pool: ProcessPool) -> list[int | None]:
    return [worker.process.pid for worker in pool._workers]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def test_results_errors_and_replies_come_back(pool: ProcessPool) -> None:
    replies: list[tuple[int, bytes]] = []

    def reply(message: MessageExt, body: bytes) -> None:
        if replies:
            raise ClientError("it has left")
        replies.append((message.queue_offset, body))

    REPLIER.set(reply)
    assert await call(pool, "succeed") is ConsumeStatus.SUCCESS
    assert await call(pool, "later") is ConsumeStatus.RECONSUME_LATER
    assert await call(pool, "reply") is ConsumeStatus.SUCCESS
    assert replies == [(0, b"pong")]
    with pytest.raises(ClientError, match="it has left"):
        await call(pool, "reply")
    with pytest.raises(ValueError, match="no such order") as raised:
        await call(pool, "raise")
    assert "in on_message\n    raise ValueError(" in raised.value.__notes__[0]
    with pytest.raises(HandlerProcessError, match="ClumsyError: 1 and 2"):
        await call(pool, "clumsy")
    assert await call(pool, "lambda") is ConsumeStatus.SUCCESS  # a result that cannot be copied
    assert len(processes_of(pool)) == 1  # one after the other: one process is enough


async def test_context_of_a_batch_handler_returns() -> None:
    pool = pool_of(process_handlers.on_messages, takes_batch=True)
    concurrent, orderly = ConsumeContext(QUEUE), OrderlyContext(QUEUE)
    async with pool.open():
        for context in (concurrent, orderly):
            await trio.to_thread.run_sync(pool.call, [message("succeed")] * 3, context)
    assert concurrent == ConsumeContext(QUEUE, delay_level=3, ack_index=1)
    assert orderly == OrderlyContext(QUEUE, suspend_s=0.5)


@pytest.mark.parametrize("make", [Bench, OrderlyBench])
async def test_direct_calls_run_in_a_process(pool: ProcessPool, make: type[Bench | OrderlyBench]) -> None:
    service = make(pool.call).service
    assert await service.consume_directly(message("succeed"), QUEUE) == (ConsumeResult.CR_SUCCESS, "")
    result, remark = await service.consume_directly(message("raise"), QUEUE)
    assert (result, remark) == (ConsumeResult.CR_THROW_EXCEPTION, "ValueError: no such order")


async def test_dying_process_fails_its_own_call_only(
    pool: ProcessPool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(fifo := tmp_path / "fifo")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, pool, f"hang {fifo}")
        busy = int(await trio.Path(fifo).read_text())
        with pytest.raises(HandlerProcessError, match="SIGKILL"):
            await call(pool, "die")
        assert await call(pool, "succeed") is ConsumeStatus.SUCCESS
        assert busy in processes_of(pool)
        (idle,) = (pid for pid in processes_of(pool) if pid not in (busy, None))
        assert idle is not None
        os.kill(idle, signal.SIGKILL)
        await trio.to_thread.run_sync(os.waitid, os.P_PID, idle, os.WEXITED | os.WNOWAIT)
        assert await call(pool, "succeed") is ConsumeStatus.SUCCESS  # another one took its place
        nursery.cancel_scope.cancel()
    assert caplog.text.count("handler process died") == 1


async def test_at_the_end_idle_and_busy_processes_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(fifo := tmp_path / "fifo")
    pool = pool_of()
    returned = threading.Event()

    def hang() -> None:
        try:
            pool.call(message(f"hang {fifo}"))
        finally:
            returned.set()

    with trio.fail_after(60):
        async with pool.open(), trio.open_nursery() as nursery:
            nursery.start_soon(functools.partial(trio.to_thread.run_sync, hang, abandon_on_cancel=True))
            await trio.Path(fifo).read_text()
            await call(pool, "succeed")
            pids = processes_of(pool)
            nursery.cancel_scope.cancel()
        assert len(pids) == 2
        assert all(is_gone(pid) for pid in pids if pid)
        assert await trio.to_thread.run_sync(returned.wait, 60)
    assert not caplog.records


class Shop:
    def method(self, message: MessageExt) -> None: ...


def outer() -> Any:
    def inner(message: MessageExt) -> None: ...

    return inner


@pytest.mark.parametrize(
    "handler",
    [
        lambda _message: None,
        outer(),
        Shop().method,
        functools.partial(process_handlers.on_message),
        process_handlers.on_message_async,
    ],
)
def test_handler_without_import_path_is_refused_at_once(handler: Any) -> None:
    with pytest.raises(ConfigError, match="top level of a module"):
        pool_of(handler)


PROGRAM = """
import trio
from triomq.client.consumer.handlers import Handler
from triomq.client.consumer.processing.processes import ProcessPool
from tests.process_handlers import on_message
from tests.unit.client.consumer.fake_cluster import make_message

async def main():
    pool = ProcessPool(Handler.of(on_message, None, "G"))
    async with pool.open():
        print(*[worker.process.pid for worker in pool._workers], flush=True)
        {then}
"""
GUARD = 'if __name__ == "__main__":\n    trio.run(main)\n'
HANG = 'made = make_message(0); made.stored_body = b"hang {fifo}"; await trio.to_thread.run_sync(pool.call, made)'


def start(folder: Path, then: str, main: str) -> "subprocess.Popen[str]":
    script = folder / "script.py"
    script.write_text(PROGRAM.format(then=then) + main)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_no_process_survives_a_killed_parent(tmp_path: Path) -> None:
    os.mkfifo(fifo := tmp_path / "fifo")
    with start(tmp_path, HANG.format(fifo=fifo), GUARD) as parent:
        child = int(fifo.read_text())
        watched = os.pidfd_open(child)
        parent.kill()
        ended, _, _ = select.select([watched], [], [], 60)
        if not ended:
            os.kill(child, signal.SIGKILL)
        os.close(watched)
        assert ended


def test_script_without_main_guard_gets_advice(tmp_path: Path) -> None:
    with start(tmp_path, "pass", "trio.run(main)\n") as script:
        _, stderr = script.communicate(timeout=120)
    assert script.returncode == 1
    assert 'must open its consumer below if __name__ == "__main__"' in stderr


def test_interpreter_exit_ends_the_processes(tmp_path: Path) -> None:
    inside_a_thread = (
        "import threading\nready = threading.Event()\n"
        'if __name__ == "__main__":\n'
        "    threading.Thread(target=trio.run, args=(main,), daemon=True).start()\n    ready.wait()\n"
    )
    with start(tmp_path, "ready.set(); await trio.sleep_forever()", inside_a_thread) as script:
        stdout, stderr = script.communicate(timeout=120)
    assert (script.returncode, stderr) == (0, "")
    assert is_gone(int(stdout))
