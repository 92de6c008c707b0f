"""The life of a command that serves until a signal ends it."""

import gc
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeVar

import trio

from triomq import __version__
from triomq.cli.arguments.parser import Options
from triomq.cli.output import write_text
from triomq.cli.run import end_at_next_signal, stop_signals
from triomq.common.logs import reopen_log_file

LOGGER: Final = logging.getLogger("triomq.cli.serving")

#: New objects before Python looks for garbage cycles.  A broker makes many short-lived objects and hardly any cycle:
#: with Python's 700 it would search several times in each step.
_GC_THRESHOLD: Final = 20_000
#: Then how many of these searches before one among all that was made since: of 60,000 objects each takes some 20 ms.
_GC_MIDDLE: Final = 3
_GC_ALL: Final = 130

Server = TypeVar("Server")


def serve_until_signal(
    server: AbstractAsyncContextManager[Server],
    describe: Callable[[Server], tuple[Mapping[str, Any], str]],
    options: Options,
    *,
    ends_with_stdin: bool = False,
) -> None:
    """Open a server, write a line when it is ready, and close it at the first signal; a second ends it at once.

    With a log file SIGHUP only reopens that.

    Args:
        server: what to open.
        describe: returns what the line says of it: the members of ``--json``, and the text.
        options: of the command.
        ends_with_stdin: take the end of stdin as a signal.
    """
    raise_open_files_limit()
    trio.run(_serve, server, describe, options, ends_with_stdin)


async def _serve(
    server: AbstractAsyncContextManager[Server],
    describe: Callable[[Server], tuple[Mapping[str, Any], str]],
    options: Options,
    ends_with_stdin: bool,  # trio.run passes no keywords
) -> None:
    with stop_signals() as signals, trio.CancelScope() as starting:
        life = _Life(starting, reopens_log=options.log_file is not None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.watch, signals)
            if ends_with_stdin:
                nursery.start_soon(life.watch_stdin)
            async with server as running:
                life.end = life.stop.set
                settle_garbage_collector()
                members, text = describe(running)
                line = f"triomq {__version__} is ready: {text}"
                if options.json:
                    line = json.dumps({"event": "ready", **members, "pid": os.getpid()}, separators=(",", ":"))
                try:
                    write_text(line + "\n")
                except BrokenPipeError:
                    LOGGER.warning("ready line not written: stdout is closed")
                await life.stop.wait()
            nursery.cancel_scope.cancel()


class _Life:
    """Handles signals: the first one cancels the start of the server, or stops it in order once it is ready.

    Attributes:
        stop: set when the server is to stop.
        end: what the signal calls.
    """

    def __init__(self, starting: trio.CancelScope, *, reopens_log: bool) -> None:
        self._reopens_log = reopens_log
        self.stop: Final = trio.Event()
        self.end: Callable[[], None] = starting.cancel

    async def watch(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            if number == signal.SIGHUP and self._reopens_log:
                reopen_log_file()
                LOGGER.info("log file reopened")
                continue
            LOGGER.info("stopping signal=%s", signal.Signals(number).name)
            end_at_next_signal()
            self.end()
            return

    async def watch_stdin(self) -> None:
        async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stdin:
            async for _ in stdin:
                pass
        LOGGER.info("stopping reason=stdin ended")
        end_at_next_signal()
        self.end()


def raise_open_files_limit() -> None:
    """Raise the limit of open files to the hard limit: each mapped file and each client needs some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as exc:
            LOGGER.info("limit of open files not raised limit=%d error=%s", soft, exc)


def settle_garbage_collector() -> None:
    """Exclude the objects that exist now, mostly modules, from garbage collection; free those excluded before."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, _GC_MIDDLE, _GC_ALL)
