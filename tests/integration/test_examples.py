"""The examples of the documents do what the text says, word for word; only the ports are free ones."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.cli_tools import LIMIT_S, environment
from tests.processes import Broker, start_triomq
from triomq.client import ConsumerNotOnlineError
from triomq.client.sync import Admin

ROOT = Path(__file__).resolve().parents[2]
NAMESRV = "127.0.0.1:9876"


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), re.DOTALL)


#: What each Python example prints.
PYTHON = {
    "README.md": [r"SEND_OK \w+ orders@broker-a:\d\npaid \('17',\) order 17\n", r"1 orders@broker-a:\d\n", ""],
    "docs/api.md": [
        r"SEND_OK orders@broker-a:\d\n",
        r"COMMIT\n",
        r"150\n",
        r"(\d+ b'.*'\n){100,}",
        r"pong 1\n",
        r"hello\n",
        r"(invoices@broker-a:\d 0\n){4}",
        r"triomq message trace \w+\n",
        r"orders\n",
    ],
    "docs/services.md": [
        "",
        r"topic does not exist: .*\n",
        r"SEND_OK\n",
        "",
        "",
        "",
        r"\[('SEND_OK'(, )?){3}\]\n",
        r"started\n",
    ],
    "docs/tracing.md": [r"send orders\norder\nwrite invoice\nprocess orders\n"],
    "docs/tutorial.md": [
        r"(SEND_OK \d \d\n){5}",
        r"(invoice for order [13]\n){2}",
        r"(?s)handler raised group=shipping topic=parcels .* next=they come again .*ValueError: cannot ship parcel 1\n",
    ],
    "docs/configuration.md": [r"\(Address\(host='127.0.0.1', port=\d+\), Address\(host='127.0.0.1', port=\d+\)\)\n"],
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with start_triomq(tmp_path / "broker") as broker:
        yield broker


def run(*command: str, namesrv: str = "", cwd: Path | None = None) -> str:
    """Return all that a command wrote, to stderr too."""
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        env=environment(namesrv),
        check=False,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def serve(*command: str, namesrv: str, cwd: Path) -> str:
    """Return all that a service wrote whose group is "invoices" and that got SIGTERM when it was a member."""
    with (
        Admin(namesrv=namesrv) as admin,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd) as service,
    ):
        ends = time.monotonic() + LIMIT_S
        while service.poll() is None and time.monotonic() < ends:
            with suppress(ConsumerNotOnlineError):
                admin.group_members("invoices")
                break
            time.sleep(0.05)
        service.terminate()
        written, _ = service.communicate(timeout=LIMIT_S)
    assert service.returncode == 0, written
    return written


@pytest.mark.timeout(300)  # a document has up to ten programs
@pytest.mark.parametrize("document", PYTHON)
def test_python_examples_print_what_the_text_says(broker: Broker, document: str, tmp_path: Path) -> None:
    for code, printed in zip(blocks(document, "python"), PYTHON[document], strict=True):
        (tmp_path / "example.py").write_text(code.replace(NAMESRV, broker.namesrv), encoding="utf-8")
        command = (sys.executable, "-W", "error", "example.py")
        written = (
            serve(*command, namesrv=broker.namesrv, cwd=tmp_path) if ").run()" in code else run(*command, cwd=tmp_path)
        )
        assert re.fullmatch(printed, written), written
    if document == "docs/tutorial.md":
        assert "\n1 dead letter of group shipping sent back, 0 left\n" in shell(document, "dlq redrive", broker)


def shell(document: str, word: str, broker: Broker) -> str:
    (script,) = [block for block in blocks(document, "sh") if word in block]
    python = f"{sys.executable} -m triomq.cli"
    return run("sh", "-ec", re.sub(r"\btriomq\b", python, script), namesrv=broker.namesrv)


@pytest.mark.parametrize("document", ["README.md", "docs/tutorial.md"])
def test_the_shell_example_sends_and_receives(broker: Broker, document: str) -> None:
    written = shell(document, "greetings", broker)
    sent, received = written.splitlines()
    assert sent.startswith("sent 1 message")
    assert received == "hello"
