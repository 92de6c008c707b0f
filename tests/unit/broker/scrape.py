"""A scrape, parsed by Prometheus' parser, and a broker with a sample for each metric."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeAlias, cast

from prometheus_client.parser import text_string_to_metric_families

from tests.subscriptions import tag_subscription
from tests.unit.broker.recording import Clock, Peer
from tests.unit.broker.replication.ends import FakeMaster, FakeSlave, slave_state
from triomq.broker.metrics import BrokerMetrics
from triomq.broker.server import Broker
from triomq.protocol.bodies.client import ConsumerData, HeartbeatData, ProducerData
from triomq.protocol.bodies.route import TopicConfig
from triomq.protocol.codes import MessageSysFlag, RequestCode
from triomq.protocol.record.message_id import parse_offset_message_id

Labels: TypeAlias = tuple[tuple[str, str], ...]
Scrape: TypeAlias = dict[str, dict[Labels, float]]
"""Value by labels, without those of the server, by the name of the series."""

SERVER = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a", "broker_id": "0"}


def parse(text: bytes, server: dict[str, str] | None = None) -> Scrape:
    """Parse a scrape; check that all series have the labels of the server and none occurs twice."""
    found: Scrape = defaultdict(dict)
    for family in text_string_to_metric_families(text.decode()):
        assert family.documentation
        assert family.type != "unknown"
        for sample in family.samples:
            labels = dict(sample.labels)
            for name, value in (SERVER if server is None else server).items():
                assert labels.pop(name) == value
            key = tuple(sorted(labels.items()))
            assert key not in found[sample.name]
            found[sample.name][key] = sample.value
    return found


async def scrape(broker: Broker) -> Scrape:
    return parse(await BrokerMetrics(broker).metrics())


def of(found: Scrape, name: str, **labels: str) -> list[float]:
    """Return the values of a metric's series that have these labels."""
    return [value for key, value in found[name].items() if labels.items() <= dict(key).items()]


def join(peer: Peer, group: str, *topics: str, client_id: str = "c1", tags: str = "*") -> None:
    """Let a peer consume and produce."""
    wanted = [tag_subscription(topic, tags, 1) for topic in topics]
    data = HeartbeatData(client_id, [ProducerData("P")], [ConsumerData(group, subscription_data_set=wanted)])
    assert peer.get(RequestCode.HEART_BEAT, body=data.encode()).code == 0


def offset_of_message(msg_id: str) -> int:
    return parse_offset_message_id(msg_id)[2]


def make_busy(broker: Broker, clock: Clock, peers: Callable[[str], Peer]) -> None:
    """Cause a sample of each metric: two messages sent, one pulled, and so on."""
    broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1))
    peer, other = peers("192.0.2.9:50001"), peers("192.0.2.10:50002")
    join(peer, "G", "T")
    join(other, "G", "T", tags="A")  # the same client id, and another subscription
    join(other, "MISSING", "missing")
    broker.groups.consumers.check()
    sent = [peer.put("T"), peer.put("T", b"hello, world")]
    assert peer.pull("T", 0, maxMsgNums=1) is not None
    broker.groups.commit("G", "T", 0, 1)
    back = {"offset": offset_of_message(sent[0].ext_fields["msgId"]), "group": "G", "delayLevel": -1}
    assert peer.get(RequestCode.CONSUMER_SEND_MSG_BACK, back).code == 0
    assert peer.put("T", i="DELAY\x013\x02").code == 0
    assert peer.put("T", i=f"TIMER_DELIVER_MS\x01{clock.now_ms + 60_000}\x02").code == 0
    for decision in (MessageSysFlag.TRANSACTION_COMMIT, MessageSysFlag.TRANSACTION_ROLLBACK, None):
        prepared = peer.put("T", i="TRAN_MSG\x01true\x02PGROUP\x01P", f=int(MessageSysFlag.TRANSACTION_PREPARED))
        if decision is not None:
            fields = prepared.ext_fields
            header = {
                "producerGroup": "P", "tranStateTableOffset": fields["queueOffset"],
                "commitLogOffset": offset_of_message(fields["msgId"]), "commitOrRollback": int(decision), "msgId": "id",
            }  # fmt: skip
            assert peer.get(RequestCode.END_TRANSACTION, header).code == 0
    broker.copies.master = cast(Any, FakeMaster([slave_state("192.0.2.11:5", lag_s=0.5)]))
    broker.copies.slave = cast(Any, FakeSlave("192.0.2.12:6", last_received_s=0.0))
    for second in range(0, 80, 10):
        broker.housekeeping.stalls.scan(second)
        clock.now_ms += 10_000
