import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.unit.client.consumer.fake_cluster import make_message
from tests.unit.client.fake_broker import FakeBroker
from triomq.client import ClientConfig, MessageExt, TransactionProducer, TransactionState
from triomq.client.producer.transaction import decision
from triomq.protocol.codes import RequestCode
from triomq.protocol.message_queue import PhysicalOffset, QueueOffset
from triomq.protocol.requests.messages import CheckTransactionStateRequestHeader


def check(message: MessageExt) -> TransactionState:
    raise AssertionError(f"asked about {message}")


@pytest.mark.parametrize(
    ("error", "state"),
    [(None, TransactionState.COMMIT), (ValueError(), TransactionState.ROLLBACK), (KeyboardInterrupt(), None)],
)
def test_end_of_block_decides(error: BaseException | None, state: TransactionState | None) -> None:
    assert decision(error) is state


async def test_producer_announces_itself_to_a_later_broker(fake_broker: FakeBroker) -> None:
    await fake_broker.stop()
    config = ClientConfig(connect=False)
    async with TransactionProducer("group", namesrv=fake_broker.address, check=check, topics=("Topic",), config=config):
        await fake_broker.restart()
        await fake_broker.wait_for(RequestCode.HEART_BEAT)
    (group,) = fake_broker.heartbeats()[0].producer_data_set
    assert group.group_name == "group"


async def test_producer_announces_itself_for_a_later_topic(fake_broker: FakeBroker) -> None:
    config = ClientConfig(poll_namesrv_interval_s=0.01)
    async with TransactionProducer("group", namesrv=fake_broker.address, check=check, topics=("New",), config=config):
        await fake_broker.wait_for(RequestCode.GET_ROUTEINFO_BY_TOPIC, 2)
        fake_broker.add_topic("New")
        await fake_broker.wait_for(RequestCode.HEART_BEAT)


async def test_checks_that_wait_are_bounded_in_bytes(fake_broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    asked: list[MessageExt] = []
    checked = trio.Event()

    async def check_slowly(message: MessageExt) -> TransactionState:
        asked.append(message)
        await checked.wait()
        return TransactionState.UNKNOWN

    header = CheckTransactionStateRequestHeader(QueueOffset(0), PhysicalOffset(0))
    async with TransactionProducer("group", namesrv=fake_broker.address, check=check_slowly) as producer:
        for number in range(100):
            producer._take_check("broker", header, make_message(number, bytes(2 * 1024**2)))
        refused = caplog.text.count("too many checks")
        checked.set()
        await wait_all_tasks_blocked()
        assert len(asked) == 100 - refused == 8
        producer._take_check("broker", header, make_message(100))
        await wait_all_tasks_blocked()
    assert len(asked) == 9
