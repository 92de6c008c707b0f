"""A Java client and ours in one namespace, both traced, send to each other; their traces agree.

Both RocketMQ's trace records and OpenTelemetry's spans are checked.
"""

import json
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.integration.cli_tools import triomq
from tests.interop.kit_driver import KIT, java_program, run
from tests.interop.suite_tools import Inbox, fresh, has_route, push_consumer, until
from triomq.client import Admin, ClientConfig, Message, OpenTelemetry, Producer

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

#: ``SPAN`` of the program.
JAVA_SPAN: Final = 0x00F067AA0BA902B7


def steps(namesrv: str, message_id: str) -> list[dict[str, Any]]:
    done = triomq("message", "trace", message_id, "--json", namesrv=namesrv)
    return [json.loads(line) for line in done.stdout.splitlines()]


async def story(namesrv: str, message_id: str, count: int) -> list[tuple[str, str, str]]:
    """Return each step with its client and status, once this many steps have ended."""
    found: list[dict[str, Any]] = []

    async def is_told() -> bool:
        nonlocal found
        found = await trio.to_thread.run_sync(steps, namesrv, message_id)
        return len(found) >= count and all(step["result"] != "not ended" for step in found)

    with trio.fail_after(30):
        await until(is_told)
    return [(step["what"], step["group"], step["result"]) for step in found]


async def test_java_and_triomq_share_namespace_and_trace(either_namesrv: str, tmp_path: Path) -> None:
    namesrv = either_namesrv
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    config = ClientConfig(namespace=fresh("tenant"), open_telemetry=OpenTelemetry(tracer_provider=provider))
    topic, answers, group, ours = fresh("orders"), fresh("answers"), fresh("java"), fresh("ours")
    inbox = Inbox()
    async with Admin(namesrv=namesrv, config=config) as admin:
        for name in (topic, answers):
            await admin.create_topic(name, queues=1)
            await until(lambda name=name: has_route(admin, name))  # type: ignore[misc]
    names = (namesrv, str(config.namespace), group, topic, answers)
    with java_program("TracedPeer.java", *names, output=tmp_path / "java.out"), trio.fail_after(90):
        async with (
            Producer("P", namesrv=namesrv, config=config, trace=True) as producer,
            push_consumer(namesrv, answers, inbox.take, group=ours, config=config, trace=True),
        ):
            sent = await producer.send(Message(topic, b"hello", keys="our-key"))
            await inbox.wait_count(1)
        (answer,) = inbox.messages
        assert (answer.topic, answer.body) == (answers, f"{topic} hello".encode())
        our_send, our_process = exporter.get_finished_spans()
        assert (our_send.name, our_process.name) == (f"send {topic}", f"process {answers}")
        assert our_send.context is not None
        assert our_process.parent is not None
        assert (our_process.parent.trace_id, our_process.parent.span_id) == (our_send.context.trace_id, JAVA_SPAN)
        assert await story(namesrv, sent.message_id, 3) == [
            ("sent", "P", "ok"),
            ("consumed", group, "failed"),
            ("consumed", group, "ok"),
        ]
        assert await story(namesrv, answer.message_id, 2) == [("sent", "JavaAnswers", "ok"), ("consumed", ours, "ok")]
    for message_id, groups in ((sent.message_id, ("P", group)), (answer.message_id, ("JavaAnswers", ours))):
        command = (KIT / "run.sh", "--client", "4.9.7", "mqadmin", "queryMsgTraceById", "-n", namesrv, "-i", message_id)
        text = run(command, 60).stdout
        assert "Pub" in text, text
        assert "success" in text, text
        for name in groups:
            assert name in text, text
