"""Stores in temporary directories, and directories written by an Apache 4.9.7 broker."""

import json
import lzma
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.unit.storage.making import FaultyFileSystem, StoreMaker
from triomq.storage.message_store import MessageStore

FIXTURES: Final = Path(__file__).parents[2] / "fixtures" / "store-4.9.7"


@pytest.fixture
def maker(tmp_path: Path) -> Iterator[StoreMaker]:
    """Creates stores."""
    maker = StoreMaker(tmp_path)
    yield maker
    maker.close()


@pytest.fixture
def store(maker: StoreMaker) -> MessageStore:
    """An open, empty store."""
    return maker()


@pytest.fixture
def faulty() -> FaultyFileSystem:
    """A file system with injected failures."""
    return FaultyFileSystem()


@pytest.fixture
def unpack(tmp_path: Path) -> Callable[[str], Path]:
    """Returns the path of a fresh copy of a directory written by Apache 4.9.7, with its modification times."""

    def unpack(name: str) -> Path:
        with tarfile.open(FIXTURES / f"{name}.tar.xz") as archive:
            archive.extractall(tmp_path / name, filter="data")
        return tmp_path / name / "store"

    return unpack


@pytest.fixture(scope="session")
def expected() -> dict[str, Any]:
    """The contents of these directories according to Apache's classes."""
    with lzma.open(FIXTURES / "expected.json.xz") as file:
        content: dict[str, Any] = json.load(file)
    return content
