from tests.unit.client.fake_broker import FakeBroker
from triomq.client import ClientConfig, MessageExt, TransactionProducer, TransactionState
from triomq.protocol.codes import RequestCode


def check(message: MessageExt) -> TransactionState:
    raise AssertionError(f"asked about {message}")


async def test_producer_announces_itself_to_a_broker_that_starts_later(fake_broker: FakeBroker) -> None:
    await fake_broker.stop()
    async with TransactionProducer("group", namesrv=fake_broker.address, check=check, topics=("Topic",)):
        await fake_broker.restart()
        await fake_broker.wait_for(RequestCode.HEART_BEAT)
    (group,) = fake_broker.heartbeats()[0].producer_data_set
    assert group.group_name == "group"


async def test_producer_announces_itself_to_a_broker_that_gets_its_topic_later(fake_broker: FakeBroker) -> None:
    config = ClientConfig(poll_namesrv_interval_s=0.01)
    async with TransactionProducer("group", namesrv=fake_broker.address, check=check, topics=("New",), config=config):
        await fake_broker.wait_for(RequestCode.GET_ROUTEINFO_BY_TOPIC, 2)
        fake_broker.add_topic("New")
        await fake_broker.wait_for(RequestCode.HEART_BEAT)
