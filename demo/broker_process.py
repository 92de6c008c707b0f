"""A broker in its own process, started from the command line as by a user."""

import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import trio

from triomq.protocol.errors import TriomqError

READY_S: Final = 15.0
STOP_S: Final = 5.0


class BrokerProcessError(TriomqError):
    """The broker did not start; the text has the end of its log."""


class BrokerProcess(NamedTuple):
    """A running broker; addresses are ``HOST:PORT``."""

    broker: str
    namesrv: str
    store: Path
    log: Path
    pid: int
    ready_s: float


@asynccontextmanager
async def open_broker_process(folder: Path) -> AsyncGenerator[BrokerProcess]:
    """Run a broker with its store in ``folder`` while the block runs.

    Raises:
        BrokerProcessError: it did not become ready.
    """
    store, log = folder / "store", folder / "broker.log"
    began = trio.current_time()
    with log.open("wb") as stderr:
        process = await trio.lowlevel.open_process(
            [
                *(sys.executable, "-m", "triomq.cli", "broker", "--json"),
                *("--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0", "--store", str(store)),
                *("--disk-full-ratio", "100", "--disk-clean-ratio", "100"),  # whatever other programs use
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,  # not stopped by Ctrl-C: it must outlive its clients
        )
    try:
        ready = await _wait_until_ready(process, log)
        yield BrokerProcess(ready["broker"], ready["namesrv"], store, log, process.pid, trio.current_time() - began)
    finally:
        await _end(process)


async def _wait_until_ready(process: trio.Process, log: Path) -> dict[str, str]:
    assert process.stdout is not None
    data = b""
    with trio.move_on_after(READY_S):
        async for chunk in process.stdout:
            data += chunk
            if b"\n" in data:
                found = json.loads(data)
                assert isinstance(found, dict)
                return found
    raise BrokerProcessError(f"the broker did not become ready within {READY_S:g} s: {_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace").strip()[-1000:] or "its log is empty"


async def _end(process: trio.Process) -> None:
    with trio.move_on_after(STOP_S, shield=True):
        process.terminate()
        await process.wait()
    if process.returncode is None:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
