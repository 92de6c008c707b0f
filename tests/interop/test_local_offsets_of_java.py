"""Apache's own class reads the offsets that our broadcasting consumers keep, and our consumers read its files."""

from pathlib import Path
from typing import Final

import pytest

from tests.interop.kit_driver import java_classpath, run
from triomq.client.consumer.offsets.local_offsets import OffsetsFile
from triomq.protocol.message_queue import MessageQueue, QueueOffset

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

CLIENT_ID: Final = "127.0.0.1@DEFAULT"
GROUP: Final = "caches"
OFFSETS: Final = {
    MessageQueue("T", "broker-a", 0): QueueOffset(7),
    MessageQueue("T", "broker-b", 3): QueueOffset(0),
    MessageQueue("a-topic_%with|marks", "broker-a", 1): QueueOffset(2**40),
}
ENTRIES: Final = [f"{queue.topic}/{queue.broker_name}/{queue.queue_id}={at}" for queue, at in OFFSETS.items()]
QUEUES: Final = [entry.rpartition("=")[0] for entry in ENTRIES]


@pytest.fixture(scope="module", params=["4.9.7", "5.5.0"])
def classpath(request: pytest.FixtureRequest) -> str:
    """The jars of a client's version, built by the kit if need be."""
    return java_classpath(request.param)


def java(classpath: str, base: Path, command: str, *queues: str) -> list[str]:
    folder = f"-Drocketmq.client.localOffsetStoreDir={base}"
    program = Path(__file__).with_name("LocalOffsets.java")
    done = run(["java", folder, "-cp", classpath, program, command, CLIENT_ID, GROUP, *queues], 60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_java_reads_our_offsets(classpath: str, tmp_path: Path) -> None:
    file = OffsetsFile.open(tmp_path, CLIENT_ID, GROUP)
    file.save(OFFSETS)
    file.close()
    assert java(classpath, tmp_path, "read", *QUEUES, "T/broker-a/9") == [*ENTRIES, "T/broker-a/9=-1"]


def test_we_read_javas_offsets(classpath: str, tmp_path: Path) -> None:
    java(classpath, tmp_path, "write", *ENTRIES)
    file = OffsetsFile.open(tmp_path, CLIENT_ID, GROUP)
    assert file.load() == OFFSETS
    file.close()


def test_java_falls_back_to_our_backup(classpath: str, tmp_path: Path) -> None:
    file = OffsetsFile.open(tmp_path, CLIENT_ID, GROUP)
    file.save(OFFSETS)
    file.save({queue: QueueOffset(at + 1) for queue, at in OFFSETS.items()})
    file.close()
    file.path.write_bytes(b"")
    assert java(classpath, tmp_path, "read", *QUEUES) == ENTRIES
