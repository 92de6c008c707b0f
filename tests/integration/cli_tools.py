"""Runs ``triomq`` commands as a shell would."""

import atexit
import functools
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

LIMIT_S: Final = 40
COMMAND: Final = (sys.executable, "-m", "triomq.cli")


def environment(namesrv: str = "") -> dict[str, str]:
    """The environment of a command, with its name server."""
    return {**os.environ, "TRIOMQ_NAMESRV": namesrv, "PYTHONUNBUFFERED": "1"}


def triomq(*words: str, namesrv: str = "", stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end, in a fork of a process that has imported it.

    Raises:
        subprocess.TimeoutExpired: it has not ended after 40 s.
    """
    request = json.dumps({"words": words, "environment": environment(namesrv)}).encode()
    ended, report = os.pipe()
    try:
        with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
            given.write(stdin)
            given.seek(0)
            try:
                socket.send_fds(_fork_server(), [request], [given.fileno(), out.fileno(), err.fileno(), report])
            finally:
                os.close(report)
            if not select.select([ended], [], [], LIMIT_S)[0]:
                raise subprocess.TimeoutExpired(words, LIMIT_S)
            code = int(os.read(ended, 16))
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(words, code, out.read(), err.read())
    finally:
        os.close(ended)


@functools.cache
def _fork_server() -> socket.socket:
    """Start the server of this test process; it ends when this process closes its end of the socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen(
            (sys.executable, "-m", "tests.integration.fork_server", str(theirs.fileno())),
            pass_fds=[theirs.fileno()],
            env=environment(),
            cwd=Path(__file__).parents[2],
        )

    @atexit.register
    def _end() -> None:
        ours.close()
        server.wait()

    return ours


@contextmanager
def running(*words: str, namesrv: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Start a command whose stdin, stdout and stderr are pipes; what a test leaves running is killed."""
    process = subprocess.Popen(
        (*COMMAND, *words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(namesrv),
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


def read_line(process: subprocess.Popen[bytes]) -> str:
    """Return the next line a running command writes."""
    assert process.stdout is not None
    return process.stdout.readline().decode()


def ok(*words: str, namesrv: str = "", stdin: bytes = b"") -> str:
    """Run a command that must succeed without output on stderr; return its stdout."""
    done = triomq(*words, namesrv=namesrv, stdin=stdin)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


def complaint(code: int, *words: str, namesrv: str = "", stdin: bytes = b"") -> str:
    """Run a command that must fail with an exit code and one line on stderr; return the line."""
    done = triomq(*words, namesrv=namesrv, stdin=stdin)
    text = done.stderr.decode()
    assert done.returncode == code, text
    assert text.count("\n") == 1, text
    return text
