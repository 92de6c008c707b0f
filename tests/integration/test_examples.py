"""The examples of the documents do what the text says, word for word; only the ports are free ones."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli_tools import LIMIT_S, environment
from tests.processes import Broker, start_triomq

ROOT = Path(__file__).resolve().parents[2]
NAMESRV = "127.0.0.1:9876"


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), re.DOTALL)


#: What each Python example prints.
PYTHON = {
    "README.md": [r"SEND_OK \w+ orders@broker-a:\d\npaid \('17',\) order 17\n", r"1 orders@broker-a:\d\n"],
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
    "docs/configuration.md": [r"\(Address\(host='127.0.0.1', port=\d+\), Address\(host='127.0.0.1', port=\d+\)\)\n"],
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = start_triomq(tmp_path_factory.mktemp("broker"))
    yield broker
    broker.stop()


def run(*command: str, namesrv: str = "", cwd: Path | None = None) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, env=environment(namesrv), check=False, cwd=cwd
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("document", PYTHON)
def test_python_examples_print_what_the_text_says(broker: Broker, document: str, tmp_path: Path) -> None:
    for code, printed in zip(blocks(document, "python"), PYTHON[document], strict=True):
        written = run(sys.executable, "-W", "error", "-c", code.replace(NAMESRV, broker.namesrv), cwd=tmp_path)
        assert re.fullmatch(printed, written), written


def test_the_shell_example_sends_and_receives(broker: Broker) -> None:
    (script,) = [block for block in blocks("README.md", "sh") if "greetings" in block]
    python = f"{sys.executable} -m triomq.cli"
    written = run("sh", "-ec", re.sub(r"\btriomq\b", python, script), namesrv=broker.namesrv)
    sent, received = written.splitlines()
    assert sent.startswith("sent 1 message")
    assert received == "hello"
