import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest
from trio.testing import MockClock

from tests.unit.client.consumer.fake_cluster import FakeCluster, FakeInstance, as_instance
from triomq.client.cluster.instance import ClientInstance
from triomq.client.config import ClientConfig
from triomq.client.consumer.offsets.local_offsets import OffsetsFile, open_offsets
from triomq.client.consumer.offsets.offset_store import OffsetStore
from triomq.protocol.bodies.client import MessageModel
from triomq.protocol.errors import ClientError, ConfigError, ProtocolError
from triomq.protocol.message_queue import MessageQueue, QueueOffset

ONE, TWO = (MessageQueue("T", "broker-a", number) for number in range(2))
#: What Java wrote: fastjson with object keys.
KEYS = tuple(
    f'{{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":{number},\n\t\t\t"topic":"T"\n\t\t}}' for number in (1, 0)
)
JAVA_4_9_7 = f'{{\n\t"offsetTable":{{{KEYS[0]}:123456789012,{KEYS[1]}:7\n\t}}\n}}'.encode()
JAVA_5_5_0 = f'{{\n\t"offsetTable":{{\n\t\t{KEYS[0]}:123456789012,\n\t\t{KEYS[1]}:7\n\t}}\n}}'.encode()
JAVA_OFFSETS = {ONE: 7, TWO: 123456789012}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the offsets of client id "c" and group "G" are."""
    made = tmp_path / "c" / "G"
    made.mkdir(parents=True)
    return made


@pytest.fixture
async def store(instance: ClientInstance, tmp_path: Path) -> AsyncIterator[OffsetStore]:
    async with open_offsets(instance, "G", MessageModel.BROADCASTING, tmp_path) as opened:
        yield opened


@pytest.fixture
def instance(cluster: FakeCluster) -> ClientInstance:
    return as_instance(FakeInstance(cluster, "c", ClientConfig(instance_name="c")))


@pytest.fixture
def fill_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Returns a function after which no file can be written."""

    def fail(_number: int) -> None:
        raise OSError(28, "No space left on device")

    return partial(monkeypatch.setattr, "os.fsync", fail)


def saved(folder: Path, name: str = "offsets.json") -> dict[MessageQueue, int]:
    """Read a file on its own terms: our writer puts no blank anywhere."""
    text = (folder / name).read_text()
    found = {}
    for entry in text.removeprefix('{"offsetTable":{').removesuffix("}}").split(",{"):
        key, _, queue_offset = entry.rpartition(":")
        fields = json.loads("{" + key.removeprefix("{"))
        found[MessageQueue(fields["topic"], fields["brokerName"], fields["queueId"])] = int(queue_offset)
    return found


def load(base: Path) -> dict[MessageQueue, QueueOffset]:
    file = OffsetsFile.open(base, "c", "G")
    try:
        return file.load()
    finally:
        file.close()


@pytest.mark.parametrize("content", [JAVA_4_9_7, JAVA_5_5_0], ids=["4.9.7", "5.5.0"])
def test_a_file_of_java_is_read(tmp_path: Path, folder: Path, content: bytes) -> None:
    (folder / "offsets.json").write_bytes(content)
    assert load(tmp_path) == JAVA_OFFSETS


@pytest.mark.parametrize("content", [b"", b'{"offsetTable":{{"brokerNa', b"\xff\x00", None])
def test_unusable_offset_file_falls_back_to_backup(tmp_path: Path, folder: Path, content: bytes | None) -> None:
    if content is not None:
        (folder / "offsets.json").write_bytes(content)
    (folder / "offsets.json.bak").write_bytes(JAVA_4_9_7)
    assert load(tmp_path) == JAVA_OFFSETS


def test_a_damaged_file_never_becomes_the_backup(tmp_path: Path, folder: Path) -> None:
    (folder / "offsets.json").write_bytes(b"{")
    (folder / "offsets.json.bak").write_bytes(JAVA_4_9_7)
    file = OffsetsFile.open(tmp_path, "c", "G")
    file.load()
    file.save({ONE: QueueOffset(8)})
    file.close()
    assert (saved(folder), (folder / "offsets.json.bak").read_bytes()) == ({ONE: 8}, JAVA_4_9_7)


@pytest.mark.parametrize("backup", [None, b"", b"{"])
def test_unreadable_offsets_are_no_new_beginning(tmp_path: Path, folder: Path, backup: bytes | None) -> None:
    (folder / "offsets.json").write_bytes(b"{")
    if backup is not None:
        (folder / "offsets.json.bak").write_bytes(backup)
    with pytest.raises(ProtocolError, match="delete the file to start over"):
        load(tmp_path)
    assert (folder / "offsets.json").read_bytes() == b"{"


def test_failed_save_leaves_the_file_unchanged(tmp_path: Path, fill_disk: Callable[[], None]) -> None:
    file = OffsetsFile.open(tmp_path, "c", "G")
    file.save({ONE: QueueOffset(1)})
    fill_disk()
    with pytest.raises(OSError, match="No space"):
        file.save({ONE: QueueOffset(2)})
    assert file.load() == {ONE: 1}
    file.close()


def test_two_consumers_never_share_a_file(tmp_path: Path) -> None:
    file = OffsetsFile.open(tmp_path, "c", "G")
    with pytest.raises(ClientError, match=r"another broadcasting consumer.*ClientConfig\(instance_name"):
        OffsetsFile.open(tmp_path, "c", "G")
    OffsetsFile.open(tmp_path, "c", "H").close()
    OffsetsFile.open(tmp_path, "d", "G").close()
    file.close()
    OffsetsFile.open(tmp_path, "c", "G").close()


def test_a_file_system_without_locks_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_number: int, _kind: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", fail)
    assert load(tmp_path) == {}
    assert "not protected from a second consumer" in caplog.text


@pytest.mark.parametrize(
    ("client_id", "error"),
    [("file", r"local_offset_dir: .*file/G"), ("../c", "instance_name"), ("a\0b", "instance_name")],
)
def test_unusable_folder_is_refused(tmp_path: Path, client_id: str, error: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=error):
        OffsetsFile.open(tmp_path, client_id, "G")


async def test_the_default_folder_is_in_the_users_home(
    instance: ClientInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    async with open_offsets(instance, "G", MessageModel.BROADCASTING, None) as store:
        await store.store_first({ONE: QueueOffset(3)})
    assert saved(tmp_path / ".rocketmq_offsets" / "c" / "G") == {ONE: 3}


async def test_progress_is_written_each_full_interval(store: OffsetStore, folder: Path) -> None:
    store.update(ONE, QueueOffset(4), increase_only=True)
    await store.persist([ONE, TWO], changed_only=True)
    assert not (folder / "offsets.json").exists()
    await store.persist([ONE, TWO], changed_only=False)
    assert saved(folder) == {ONE: 4}


async def test_nothing_is_written_if_nothing_changed(store: OffsetStore, folder: Path) -> None:
    store.update(ONE, QueueOffset(4), increase_only=True)
    await store.persist_now([ONE])
    before = (folder / "offsets.json").stat().st_ino
    await store.persist_now([ONE])
    assert (folder / "offsets.json").stat().st_ino == before


async def test_queues_given_up_stay_in_the_file(store: OffsetStore, folder: Path) -> None:
    for queue in (ONE, TWO):
        store.update(queue, QueueOffset(4), increase_only=True)
    await store.persist_now([ONE, TWO])
    store.forget(ONE)
    store.update(TWO, QueueOffset(5), increase_only=True)
    await store.persist_now([ONE, TWO])
    assert saved(folder) == {ONE: 4, TWO: 5}
    assert (await store.stored(ONE), store.get(ONE)) == (4, None)


async def test_unwritable_offset_file_is_logged_once(
    store: OffsetStore,
    folder: Path,
    fill_disk: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill_disk()
    assert list(await store.store_first({ONE: QueueOffset(1)})) == [ONE]
    store.update(ONE, QueueOffset(2), increase_only=True)
    await store.persist_now([ONE])
    monkeypatch.undo()
    assert caplog.text.count("offsets not stored") == 1
    await store.persist_now([ONE])
    assert saved(folder) == {ONE: 2}


async def test_local_offsets_are_not_sent_to_brokers(store: OffsetStore, autojump_clock: MockClock) -> None:
    store.update(ONE, QueueOffset(4), increase_only=True)
    assert (store.for_pull(ONE), store.is_exact(ONE)) == (None, True)
