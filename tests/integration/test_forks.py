"""Servers that fork: the examples of ``docs/services.md`` work, and a client opened before the fork says what to do."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.integration.test_examples import NAMESRV, blocks
from tests.processes import Broker, start_triomq

LIMIT_S = 40
ADVICE = "opened before this process was forked"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with start_triomq(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


def write_examples(broker: Broker, folder: Path, tasks: str = "") -> None:
    """Write the examples that begin with their file's name; ``tasks``: more code for the module of that name."""
    for code in blocks("docs/services.md", "python"):
        if named := re.match(r"# (\S+)\.py\n", code):
            code = code.replace(NAMESRV, broker.namesrv) + (tasks if named[1] == "tasks" else "")
            (folder / f"{named[1]}.py").write_text(code, encoding="utf-8")


@contextmanager
def running(command: Sequence[str], folder: Path, fds: Sequence[int] = ()) -> Iterator[None]:
    """Run a server in the block, and end it."""
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=fds,
            start_new_session=True,
        )
    try:
        yield
        server.terminate()
        assert server.wait(LIMIT_S) == 0, (folder / "server.log").read_text(encoding="utf-8")
    finally:
        with suppress(ProcessLookupError):  # all processes have ended
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def ask_gunicorn(folder: Path) -> str:
    """Return the example's answer, or the log if it fails."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        command = ("gunicorn", "--preload", "--workers", "2", "--bind", f"fd://{listener.fileno()}", "shop:app")
        stack.enter_context(running(command, folder, [listener.fileno()]))
        try:
            with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
                return str(answer.read(), "ascii")
        except urllib.error.HTTPError as error:
            error.close()
            return (folder / "server.log").read_text(encoding="utf-8")


def test_gunicorn_with_preload(broker: Broker, tmp_path: Path) -> None:
    write_examples(broker, tmp_path)
    assert re.fullmatch(r"[0-9A-F]{32}", ask_gunicorn(tmp_path))


def ask_celery(broker: Broker, folder: Path) -> str:
    """Return the result of the example's task, or the error."""
    for name in ("queue", "results"):
        (folder / name).mkdir()
    here = f"""
app.conf.update(
    broker_url="filesystem://",
    broker_transport_options={{"data_folder_in": "queue", "data_folder_out": "queue", "control_folder": "queue"}},
    result_backend="file://{folder}/results",
)
"""
    write_examples(broker, folder, here)
    caller = "import tasks; print(tasks.order.delay(17).get(timeout=30))"
    with running(
        ("celery", "--app", "tasks", "worker", "--concurrency", "1", "--without-gossip", "--without-mingle"), folder
    ):
        done = subprocess.run(
            [sys.executable, "-c", caller], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    return done.stdout + done.stderr


def test_celery_prefork(broker: Broker, tmp_path: Path) -> None:
    assert re.fullmatch(r"[0-9A-F]{32}\n", ask_celery(broker, tmp_path))


def test_multiprocessing_with_a_producer_opened_in_the_parent(broker: Broker, tmp_path: Path) -> None:
    write_examples(broker, tmp_path)
    script = tmp_path / "pool.py"
    script.write_text(
        script.read_text(encoding="utf-8")
        .replace(", open_clients", "")
        .replace("    with multi", "    open_clients()\n    with multi"),
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, ADVICE in done.stderr) == (1, True)
