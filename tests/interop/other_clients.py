"""Build and drive the programs around clients of other languages.

Both take one JSON object.  Members: ``action``, ``namesrv``, ``topic``, ``group``; for ``send`` also ``messages`` with
``body``, ``tag``, ``key``, ``shard``; for ``consume`` also ``tags``, ``orderly``, ``broadcast``, ``failures`` (so many
first deliveries of each message fail).  ``send`` prints ``body``, ``queue``, ``offset`` of each message sent,
``consume`` one :class:`Delivery` a line until its standard input ends.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import trio

from tests.conftest import lacking
from tests.interop.kit_driver import KIT, run
from tests.interop.suite_tools import fresh

HERE: Final = Path(__file__).parent
FETCH_TIMEOUT_S: Final = 200
BUILD_TIMEOUT_S: Final = 1500
RUN_TIMEOUT_S: Final = 60
STOP_TIMEOUT_S: Final = 20
OLDEST_CARGO: Final = (1, 95)

Command = tuple[str, ...]


class Delivery(NamedTuple):
    """One message in one consumer's handler."""

    body: str
    tag: str
    key: str
    queue: int
    offset: int
    times: int


class Consumer:
    """A consumer process and the messages it received."""

    def __init__(self) -> None:
        self.got: list[Delivery] = []
        self._arrived = trio.Event()

    def bodies(self) -> list[str]:
        return [each.body for each in self.got]

    async def wait_count(self, count: int) -> None:
        while len(self.got) < count:
            await self._arrived.wait()

    async def read(self, stdout: trio.abc.ReceiveStream) -> None:
        rest = b""
        async with stdout:
            async for data in stdout:
                *lines, rest = (rest + data).split(b"\n")
                self.got += [Delivery(**json.loads(line)) for line in lines if line.startswith(b"{")]
                self._arrived.set()
                self._arrived = trio.Event()


class Client:
    """The program around one client; ``folder`` gets logs and what the client keeps in the home folder."""

    def __init__(self, command: Command, namesrv: str, folder: Path) -> None:
        self._command = command
        self._namesrv = namesrv
        self._folder = folder

    async def send(self, topic: str, messages: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
        """Send; return queue and offset of each message, in order."""
        argument = self._argument("send", topic=topic, group=fresh("producer"), messages=messages)
        with trio.fail_after(RUN_TIMEOUT_S):
            done = await trio.run_process(
                (*self._command, argument),
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                env=self._environment(),
            )
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]

    @asynccontextmanager
    async def consumer(self, topic: str, group: str, tags: str = "*", **options: object) -> AsyncIterator[Consumer]:
        """Consume in the block; at its end the consumer must leave the group and exit with code 0."""
        argument = self._argument("consume", topic=topic, group=group, tags=tags, **options)
        log = self._folder / f"{fresh('consumer')}.log"
        consumer = Consumer()
        with log.open("wb") as stderr:
            start = partial(
                trio.run_process,
                (*self._command, argument),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                check=False,
                env=self._environment(),
            )
            async with trio.open_nursery() as nursery:
                process: trio.Process = await nursery.start(start)
                assert process.stdin is not None
                assert process.stdout is not None
                nursery.start_soon(consumer.read, process.stdout)
                yield consumer
                await process.stdin.aclose()
                with trio.fail_after(STOP_TIMEOUT_S):
                    await process.wait()
        assert process.returncode == 0, f"exit code {process.returncode}\n{log.read_text(errors='replace')[-4000:]}"

    def _argument(self, action: str, **options: object) -> str:
        return json.dumps({"action": action, "namesrv": self._namesrv, **options})

    def _environment(self) -> dict[str, str]:
        home = self._folder / fresh("home")  # where clients keep the offsets of broadcast groups
        home.mkdir()
        return {**os.environ, "HOME": str(home)}


def node_command() -> Command:
    """Install the packages of the Node program once; skips where that cannot be done."""
    _skip_without("node", "npm")
    source = HERE / "node"
    packages = ("package.json", "package-lock.json")
    with _build_folder() as build:
        folder = build / f"kit-node-{_digest(source, *packages, 'client.js')}"
        program = folder / "client.js"  # which finds its packages beside it
        if not program.exists():
            folder.mkdir(exist_ok=True)
            for name in packages:
                shutil.copy(source / name, folder)
            _fetch("npm", "ci", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund")
            shutil.copy(source / program.name, program)
    return ("node", str(program))


def rust_command() -> Command:
    """Build the Rust program once, which takes minutes; skips where its crates cannot be had."""
    _skip_without("cargo")
    source = HERE / "rust"
    with _build_folder() as build:
        program = build / f"kit-rust-{_digest(source, 'Cargo.toml', 'Cargo.lock', 'src/main.rs')}"
        if not program.exists():
            _skip_before_cargo(OLDEST_CARGO)
            manifest = ("--locked", "--manifest-path", str(source / "Cargo.toml"))
            _fetch("cargo", "fetch", *manifest)
            target = build / "kit-rust-target"  # keeps the crates for a build of other sources
            built = run(("cargo", "build", "--offline", *manifest, "--target-dir", str(target)), BUILD_TIMEOUT_S)
            assert built.returncode == 0, built.stderr
            (target / "debug" / "interop-rust").rename(program)
    return (str(program),)


def _skip_without(*tools: str) -> None:
    if missing := [tool for tool in tools if shutil.which(tool) is None]:
        pytest.skip(lacking(missing))


def _skip_before_cargo(oldest: tuple[int, int]) -> None:
    found = run(("cargo", "--version"), RUN_TIMEOUT_S).stdout
    if tuple(int(number) for number in re.findall(r"\d+", found)[:2]) < oldest:
        pytest.skip(f"needs cargo {'.'.join(map(str, oldest))} or newer, this is {found.strip()}")


def _fetch(*command: str) -> None:
    done = run(command, FETCH_TIMEOUT_S)
    if done.returncode != 0:
        pytest.skip(f"{command[0]} could not bring the packages: {done.stderr.strip()[-500:]}")


def _digest(source: Path, *names: str) -> str:
    """Differs when one of these files does."""
    return hashlib.sha256(b"\0".join((source / name).read_bytes() for name in names)).hexdigest()[:12]


@contextmanager
def _build_folder() -> Iterator[Path]:
    """The folder of the kit's builds; one build of this module at a time."""
    build = Path(os.environ.get("CONFORMANCE_BUILD") or KIT / "target")
    build.mkdir(parents=True, exist_ok=True)
    with (build / ".other-clients.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield build


if __name__ == "__main__":  # builds both ahead of the tests, see .ci/run
    for build in (node_command, rust_command):
        try:
            print("built", *build())
        except pytest.skip.Exception as exc:
            print("not built:", exc)
