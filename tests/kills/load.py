"""Load from several processes: each writes the body of every message that was acknowledged to a file.

They run ``python -m tests.kills.sender NAMESRV TOPIC PREFIX`` and end when the broker is gone.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple, Self

TOPIC: Final = "kills"
SENDERS: Final = 3
SMALL_FILES: Final = ("--commit-log-file-size", "262144", "--consume-queue-file-size", "2000")
_FIRST_ANSWER_S: Final = 30
_POLL_S: Final = 0.01


class Outcome(NamedTuple):
    """What some kills gave; ``faults`` describes what must not be."""

    kills: int
    acknowledged: int
    delivered: int
    faults: list[str]


class Load:
    """Sender processes, alive in a ``with`` block."""

    def __init__(self, namesrv: str, folder: Path, prefix: str) -> None:
        """``prefix`` begins the bodies, which must be unique."""
        self._commands = [
            (sys.executable, "-m", "tests.kills.sender", namesrv, TOPIC, f"{prefix}-{number}")
            for number in range(SENDERS)
        ]
        self._files = [folder / f"acknowledged-{prefix}-{number}" for number in range(SENDERS)]

    def __enter__(self) -> Self:
        self._senders = []
        for command, path in zip(self._commands, self._files, strict=True):
            with path.open("w") as file:
                self._senders.append(subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL))
        return self

    def __exit__(self, *_: object) -> None:
        for sender in self._senders:
            sender.kill()
        for sender in self._senders:
            sender.wait()

    def wait_acknowledged(self) -> None:
        """Return when each sender has had an answer.

        Raises:
            AssertionError: one had none within 30 s.
        """
        deadline = time.monotonic() + _FIRST_ANSWER_S
        for sender, path in zip(self._senders, self._files, strict=True):
            while not path.stat().st_size:
                assert sender.poll() is None, "a sender ended by itself"
                assert time.monotonic() < deadline, "a sender had no answer in time"
                time.sleep(_POLL_S)

    def acknowledged(self) -> set[str]:
        """Return the bodies, after the block."""
        return {line for path in self._files for line in path.read_text().splitlines()}


def consume(namesrv: str) -> list[str]:
    """Return the bodies of all messages that a broker delivers."""
    return _bodies("consume", TOPIC, "--namesrv", namesrv, "--timeout", "2")


def dump(store: Path) -> list[str]:
    """Return the bodies of all messages in a store that no broker uses."""
    return _bodies("store", "dump", "--store", str(store), "--topic", TOPIC)


def run_triomq(*command: str) -> str:
    """Run a command and return its output.

    Raises:
        AssertionError: it failed.
    """
    done = subprocess.run(
        (sys.executable, "-m", "triomq.cli", *command), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _bodies(*command: str) -> list[str]:
    return [json.loads(line)["body"].rstrip() for line in run_triomq(*command, "--json").splitlines()]
