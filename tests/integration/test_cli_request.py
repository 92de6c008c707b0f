"""``triomq request`` against a running broker."""

import json
from pathlib import Path

from tests.integration.cli_tools import complaint, ok
from tests.processes import start_triomq
from triomq.cli.exit_codes import ExitCode
from triomq.client import MessageExt, Responder
from triomq.client.sync import PushConsumer


def answer(message: MessageExt) -> bytes | None:
    return None if message.body == b"silence" else b"re: " + message.body + (message.tags or "").encode()


def test_reply_is_written(tmp_path: Path) -> None:
    with start_triomq(tmp_path) as broker:
        namesrv = broker.namesrv
        ok("topic", "create", "questions", namesrv=namesrv)
        with PushConsumer(
            "answers", namesrv=namesrv, on_message=Responder(answer), subscriptions={"questions": "*"}
        ) as consumer:
            consumer.wait_assigned()
            ask = ("request", "questions", "what?", "--timeout", "20")
            assert ok(*ask, namesrv=namesrv) == "re: what?\n"
            reply = json.loads(ok(*ask, "--tag", "!", "--json", namesrv=namesrv))
            assert reply["body"] == "re: what?!"
            words = ("request", "questions", "silence", "--timeout", "0.5")
            assert "no reply" in complaint(ExitCode.UNREACHABLE, *words, namesrv=namesrv)
