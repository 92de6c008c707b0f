"""What the demos share: the command line, a folder, and a broker in a separate process, started as by a user."""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import trio

from triomq.cli.arguments.values import parse_positive
from triomq.cli.output import write_text
from triomq.cli.run import report_error
from triomq.cli.session import run_until_signal
from triomq.client.nursery import open_service_nursery
from triomq.common.logs import configure
from triomq.protocol.errors import TriomqError

_READY_S: Final = 15.0


class DemoError(TriomqError):
    """The broker, a consumer or a job did not do what the demo needs; the text says which."""


class BrokerProcess(NamedTuple):
    """A running broker; addresses are ``HOST:PORT``."""

    broker: str
    namesrv: str
    pid: int


def run_program(
    argv: Sequence[str] | None,
    name: str,
    description: str | None,
    run: Callable[[Path, int | None], Awaitable[int]],
    *,
    may_keep: bool = False,
) -> int:
    """Run a demo; return 0 if all counts are right, 1 if not, otherwise the codes of ``triomq``.

    Args:
        argv: arguments; ``None``: those of the process.
        name: of the program.
        description: for ``--help``.
        run: takes a folder for files and how many flights to use; ``None``: all.
        may_keep: keep the folder unless ``--remove`` is given; otherwise it is always removed.
    """
    parser = argparse.ArgumentParser(prog=f"python -m triomq.{name}", description=description)
    parser.add_argument("--flights", type=parse_positive, metavar="N", help="only the first N flights (336776)")
    if may_keep:
        parser.add_argument("--remove", action="store_true", help="remove the store at the end")
    options = parser.parse_args(argv)
    configure("warning")
    folder = Path(tempfile.mkdtemp(prefix="triomq-demo-"))
    try:
        return run_until_signal(partial(run, folder, options.flights))
    except BaseException as exc:  # noqa: BLE001  # boundary: defects are raised again
        return report_error(f"triomq {name}", exc)
    finally:
        if may_keep and not options.remove:
            write_text(f"open the store again with\n  triomq broker --store {folder / 'store'}\n")
            write_text(f"and remove it with\n  rm -r {folder}\n")
        else:
            shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def open_broker_process(folder: Path) -> AsyncGenerator[BrokerProcess]:
    """Run a broker with its store in ``folder`` while the block runs.

    Raises:
        DemoError: it did not become ready.
    """
    command = (
        *(sys.executable, "-m", "triomq.cli", "broker", "--json", "--store", str(folder / "store")),
        *("--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0"),
        *("--disk-full-ratio", "100", "--disk-clean-ratio", "100"),  # other programs may have filled the disk
    )
    with (folder / "broker.log").open("wb") as log:
        start = partial(
            trio.run_process, command, stdout=subprocess.PIPE, stderr=log, check=False,
            start_new_session=True,  # Ctrl-C must not stop it: it outlives its clients
        )  # fmt: skip
        async with open_service_nursery() as nursery:
            process = await nursery.start(start)
            line = b""
            with trio.move_on_after(_READY_S):
                line = await process.stdout.receive_some()
            if not line:
                text = (folder / "broker.log").read_text(encoding="utf-8", errors="replace").strip()[-1000:]
                raise DemoError(f"the broker did not become ready within {_READY_S:g} s: {text}")
            ready = json.loads(line)
            yield BrokerProcess(ready["broker"], ready["namesrv"], process.pid)
