"""Requests of our client answered by a Java client, and the other way round."""

import subprocess
from contextlib import AbstractContextManager
from typing import Final

import pytest
import trio

from tests.interop.kit_driver import java_program
from tests.interop.suite_tools import fresh, new_topic, push_consumer
from triomq.client import Message, MessageExt, Producer, Responder

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

LIMIT_S: Final = 90


def java(namesrv: str, topic: str, mode: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return java_program("RequestReply.java", namesrv, fresh("java"), topic, mode, output=subprocess.PIPE)


async def test_java_answers_our_requests(either_namesrv: str) -> None:
    namesrv = either_namesrv
    topic = await new_topic(namesrv)
    with trio.fail_after(LIMIT_S), java(namesrv, topic, "answer") as process:
        assert process.stdout is not None
        assert await trio.to_thread.run_sync(process.stdout.readline) == "ready\n"
        async with Producer(fresh("producer"), namesrv=namesrv) as producer:
            for number in range(5):
                reply = await producer.request(Message(topic, b"%d" % number), timeout_s=20)
                assert reply.body == b"java: %d" % number


async def test_we_answer_requests_of_java(either_namesrv: str) -> None:
    namesrv = either_namesrv
    topic = await new_topic(namesrv)

    def answer(message: MessageExt) -> bytes:
        return b"python: " + message.body

    with trio.fail_after(LIMIT_S):
        async with push_consumer(namesrv, topic, Responder(answer)) as consumer:
            await consumer.wait_assigned()
            with java(namesrv, topic, "ask") as process:
                output, errors = await trio.to_thread.run_sync(process.communicate)
    replies = [line for line in output.splitlines() if line.startswith("python: ")]  # it also logs there
    assert replies == [f"python: ask {number}" for number in range(5)], errors
