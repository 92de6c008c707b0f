"""The README's examples do what it says, word for word; only the ports are free ones."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli_tools import LIMIT_S, environment
from tests.processes import Broker, start_triomq

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = start_triomq(tmp_path_factory.mktemp("broker"))
    yield broker
    broker.stop()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def run(*command: str, namesrv: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, env=environment(namesrv), check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_trio_example_sends_and_receives(broker: Broker) -> None:
    code = blocks("python")[0].replace("127.0.0.1:9876", broker.namesrv)
    sent, received = run(sys.executable, "-W", "error", "-c", code, namesrv="").splitlines()
    assert sent.startswith("SEND_OK ")
    assert received == "paid ('17',) order 17"


def test_the_blocking_example_sends(broker: Broker) -> None:
    code = blocks("python")[1].replace("127.0.0.1:9876", broker.namesrv)
    assert re.fullmatch(r"1 orders@broker-a:\d\n", run(sys.executable, "-W", "error", "-c", code, namesrv=""))


def test_the_shell_example_sends_and_receives(broker: Broker) -> None:
    (script,) = [block for block in blocks("sh") if "greetings" in block]
    python = f"{sys.executable} -m triomq.cli"
    written = run("sh", "-ec", re.sub(r"\btriomq\b", python, script), namesrv=broker.namesrv)
    sent, received = written.splitlines()
    assert sent.startswith("sent 1 messages, 5 bytes")
    assert received == "hello"


def test_there_are_no_other_python_examples() -> None:
    assert len(blocks("python")) == 2
