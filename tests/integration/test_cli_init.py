"""A broker, an application and an administrator with the files of ``triomq init``, by the commands that it prints."""

import json
import shlex
from pathlib import Path

from tests.integration.cli_tools import complaint, ok
from tests.processes import start_triomq

LISTEN = {"--listen", "--namesrv-listen", "--advertise", "--namesrv"}


def words_of(command: str) -> list[str]:
    """The words after the program's name, without addresses: the ports of a test are free ones."""
    program, *words = shlex.split(command)
    assert program == "triomq"
    for option in LISTEN & set(words):
        at = words.index(option)
        del words[at : at + 2]
    return words


def test_what_init_prints_works(tmp_path: Path) -> None:
    made = ok("init", "--acl", "--tls", "--host", "mq.example.org", "--json", str(tmp_path / "our conf"))
    serve, application, administrator = map(words_of, json.loads(made)["commands"])
    with start_triomq(tmp_path, *serve[1:]) as broker:
        assert ok(*application, namesrv=broker.namesrv).startswith("sent 1 message")
        account = application[application.index("--credentials") :]
        read = ok(
            "consume", "greetings", "--group", "readers", "--count", "1", "--json", *account, namesrv=broker.namesrv
        )
        assert json.loads(read)["topic"] == "greetings"
        assert "commit log" in ok(*administrator, namesrv=broker.namesrv)
        assert "Need admin permission" in complaint(1, "acl", "list", *account, namesrv=broker.namesrv)
        assert "TLS" in complaint(3, *administrator[:-2], namesrv=broker.namesrv)
