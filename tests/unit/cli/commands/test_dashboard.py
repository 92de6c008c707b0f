"""``triomq dashboard``: what it writes while it serves."""

import errno
import sys
from types import SimpleNamespace

import pytest

from triomq.cli.commands.dashboard import write_address


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO, errno.ENOSPC])
async def test_server_outlives_its_output(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    written = []

    def write(text: str) -> None:
        written.append(text)
        raise OSError(number, "the terminal, the pipe or the disk of stdout")

    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=write))
    await write_address("http://localhost/?token=t", as_json=False)
    assert written == ["dashboard for the next browser: http://localhost/?token=t\n"]
