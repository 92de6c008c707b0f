"""Separate file systems for tests, where mounting is allowed."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(path: Path, *arguments: str) -> Iterator[Path]:
    """Mount a file system at ``path`` for the block; a test that may not is skipped, with the reason."""
    path.mkdir(exist_ok=True)
    skip_without("mount", *arguments, str(path))
    try:
        yield path
    finally:
        if subprocess.run(["umount", str(path)], capture_output=True, timeout=10, check=False).returncode:
            subprocess.run(["umount", "--lazy", str(path)], timeout=10, check=True)  # files of this process are open


def remount(path: Path, option: str) -> None:
    """Change a mounted file system; it must be possible."""
    done = subprocess.run(
        ["mount", "-o", f"remount,{option}", str(path)], capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 0, done.stderr


def skip_without(program: str, *arguments: str) -> None:
    """Run a program of the system; where it is missing or may not do that, the test is skipped."""
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=20, check=False)
    except OSError as exc:
        pytest.skip(f"needs the program {program}: {exc}")
    if done.returncode:
        pytest.skip(f"needs the right to {program} {' '.join(arguments)}: {done.stderr.strip()}")
