"""A process whose output is read as it comes."""

import subprocess
import sys
from pathlib import Path
from typing import IO


class _Lines:
    """What a process writes to a file, as it comes."""

    def __init__(self, path: Path) -> None:
        self.output = path.open("wb")
        self._input = path.open("rb")
        self._rest = b""

    def new(self) -> list[str]:
        """Return the lines that were completed since the last call."""
        *lines, self._rest = (self._rest + self._input.read()).split(b"\n")
        return [line.decode() for line in lines]

    def close(self) -> None:
        """Close the files."""
        self.output.close()
        self._input.close()


class Process:
    """A sender or a member; its output and its log are files of a folder."""

    def __init__(self, name: str, folder: Path, *words: str) -> None:
        self.name = name
        self.lines = _Lines(folder / f"{name}.out")
        self._errors: IO[bytes] = (folder / f"{name}.log").open("wb")
        self.process = subprocess.Popen(
            (sys.executable, "-m", *words),
            stdin=subprocess.DEVNULL,
            stdout=self.lines.output,
            stderr=self._errors,
            process_group=0,  # Ctrl-C is for the one who started them
        )

    def close(self) -> None:
        """End it and close its files."""
        self.process.kill()
        self.process.wait()
        self.lines.close()
        self._errors.close()
