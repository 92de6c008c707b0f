"""Lite pull consumers in broadcasting."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.consumer.broadcast_bench import COMMITTING, Machine
from tests.unit.client.consumer.fake_cluster import FakeCluster
from tests.unit.client.consumer.lite_pull_bench import G, fill, poll_all
from triomq.client.consumer.config import LitePullConfig
from triomq.client.consumer.lite_pull import LitePullConsumer
from triomq.client.consumer.offsets.local_offsets import OffsetsFile
from triomq.protocol.bodies.client import MessageModel
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import ClientError
from triomq.protocol.message_queue import MessageQueue

pytestmark = pytest.mark.usefixtures("files_take_no_time")


class Station(Machine):
    """Its members poll."""

    def consumer(self, name: str = "one", **more: object) -> LitePullConsumer:
        given: dict[str, object] = {"start": "earliest", "auto_commit": False}
        return LitePullConsumer(
            G,
            instance=self.instance(name),
            model=MessageModel.BROADCASTING,
            settings=LitePullConfig(local_offset_dir=self.folder),
            **(given | more),  # type: ignore[arg-type]
        )


@pytest.fixture
def station(cluster: FakeCluster, tmp_path: Path) -> Station:
    return Station(cluster, tmp_path)


async def test_every_member_polls_every_message(
    autojump_clock: MockClock, cluster: FakeCluster, station: Station
) -> None:
    """C.2 scenario 38, first half."""
    queues = cluster.add_topic("T", 4)
    async with station.consumer("one") as first, station.consumer("two") as second:
        for consumer in (first, second):
            await consumer.subscribe("T")
            await consumer.wait_assigned()
        for queue in queues:
            cluster.send(queue, b"a", b"b")
        assert len(await poll_all(first)) == len(await poll_all(second)) == 8
        assert first.assignment() == second.assignment() == queues
        await first.commit()
    (data,) = cluster.heartbeats[-1].consumer_data_set
    assert data.message_model is MessageModel.BROADCASTING
    assert not any(cluster.of(code) for code in COMMITTING)
    assert all(not int(pull.ext_fields["sysFlag"]) & 1 for pull in cluster.of(RequestCode.PULL_MESSAGE))


@pytest.mark.parametrize("is_assigned", [False, True])
async def test_a_restart_goes_on_at_what_was_committed_to_the_file(
    autojump_clock: MockClock, cluster: FakeCluster, station: Station, topic: MessageQueue, is_assigned: bool
) -> None:
    """C.2 scenario 38, second half; an unpolled message is never committed (scenario 68)."""
    fill(cluster, 40)
    polled = []
    for _ in range(2):
        async with station.consumer() as consumer:
            await (consumer.assign([topic]) if is_assigned else consumer.subscribe("T"))
            polled.append([message.queue_offset for message in await consumer.poll()])
            await consumer.commit()
            assert await consumer.committed(topic) == polled[-1][-1] + 1
            await consumer.poll()
    assert polled == [list(range(32)), list(range(32, 40))]
    assert station.offsets() == {topic: 40}


async def test_commit_writes_file_at_once_or_within_its_interval(
    autojump_clock: MockClock, cluster: FakeCluster, station: Station, topic: MessageQueue
) -> None:
    file = station.folder / "one" / G / "offsets.json"
    fill(cluster, 40)
    async with station.consumer() as consumer:
        await consumer.subscribe("T")
        await consumer.poll()
        await consumer.commit()
        assert b":32" in file.read_bytes()
        await consumer.poll()
        consumer.commit_nowait()
        await wait_all_tasks_blocked()
        assert b":32" in file.read_bytes()
        await trio.sleep(6)
        assert b":40" in file.read_bytes()


async def test_a_sought_position_is_committed_down_to_the_file(
    autojump_clock: MockClock, cluster: FakeCluster, station: Station, topic: MessageQueue
) -> None:
    fill(cluster, 9)
    async with station.consumer() as consumer:
        await consumer.assign([topic])
        assert len(await poll_all(consumer)) == 9
        await consumer.commit()
        await consumer.seek(topic, 4)
        await consumer.commit()
        assert await consumer.committed(topic) == 4
        assert await poll_all(consumer) == [4, 5, 6, 7, 8]
    assert station.offsets() == {topic: 4}


async def test_progress_is_known_before_anything_is_subscribed_to(
    autojump_clock: MockClock, cluster: FakeCluster, station: Station, topic: MessageQueue
) -> None:
    async with station.consumer() as consumer:
        assert await consumer.committed(topic) is None
        await consumer.assign([topic])
        await consumer.commit({topic: 5})
    async with station.consumer() as consumer:
        assert await consumer.committed(topic) == 5


async def test_commit_raises_on_unwritable_file_and_leave_retries(
    autojump_clock: MockClock,
    cluster: FakeCluster,
    station: Station,
    topic: MessageQueue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(cluster, 3)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async with station.consumer() as consumer:
        await consumer.assign([topic])
        await poll_all(consumer)
        with monkeypatch.context() as patch:
            patch.setattr(OffsetsFile, "save", full)
            with pytest.raises(ClientError, match=r"offsets.json not stored.*No space"):
                await consumer.commit()
    assert station.offsets() == {topic: 3}


async def test_group_offset_reset_moves_member_and_its_file(
    autojump_clock: MockClock, cluster: FakeCluster, station: Station, topic: MessageQueue
) -> None:
    fill(cluster, 9)
    async with station.consumer() as consumer:
        await consumer.subscribe("T")
        assert len(await poll_all(consumer)) == 9
        await consumer.commit()
        consumer._engine.reset_offsets("T", {topic: 2})  # type: ignore[union-attr]
        assert len(await poll_all(consumer)) == 7
    assert station.offsets() == {topic: 2}


async def test_a_second_consumer_with_the_same_name_is_refused(
    cluster: FakeCluster, station: Station, topic: MessageQueue
) -> None:
    async with station.consumer():
        with pytest.raises(ClientError, match="another broadcasting consumer"):
            async with station.consumer():
                pass
