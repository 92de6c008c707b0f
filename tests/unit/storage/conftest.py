"""Stores in temporary directories, and the directories an Apache 4.9.7 broker wrote."""

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
    """Makes stores."""
    maker = StoreMaker(tmp_path)
    yield maker
    maker.close()


@pytest.fixture
def store(maker: StoreMaker) -> MessageStore:
    """An open, empty store."""
    return maker()


@pytest.fixture
def faulty() -> FaultyFileSystem:
    """A file system that can be told to fail."""
    return FaultyFileSystem()


@pytest.fixture
def unpack(tmp_path: Path) -> Callable[[str], Path]:
    """Gives the path of a fresh copy of a directory that Apache 4.9.7 wrote, with its modification times."""

    def unpack(name: str) -> Path:
        with tarfile.open(FIXTURES / f"{name}.tar.xz") as archive:
            archive.extractall(tmp_path / name, filter="data")
        return tmp_path / name / "store"

    return unpack


@pytest.fixture(scope="session")
def expected() -> dict[str, Any]:
    """What Apache's own classes say of these directories."""
    with lzma.open(FIXTURES / "expected.json.xz") as file:
        content: dict[str, Any] = json.load(file)
    return content
