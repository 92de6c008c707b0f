"""Runs ``triomq`` commands as a shell would."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

LIMIT_S: Final = 40
COMMAND: Final = (sys.executable, "-m", "triomq.cli")


def environment(namesrv: str = "") -> dict[str, str]:
    """The environment of a command, with its name server."""
    return {**os.environ, "TRIOMQ_NAMESRV": namesrv, "PYTHONUNBUFFERED": "1"}


def triomq(*words: str, namesrv: str = "", stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end."""
    return subprocess.run(
        (*COMMAND, *words), input=stdin, capture_output=True, timeout=LIMIT_S, env=environment(namesrv), check=False
    )


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
    """Run a command that must succeed and say nothing on stderr; return what it wrote."""
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
