from triomq.cli.group import describe
from triomq.client import GroupLag, MessageQueue
from triomq.protocol.bodies import Connection, ConsumerConnection, SubscriptionData
from triomq.protocol.codes import LanguageCode

LAGS = [
    GroupLag(MessageQueue("T", "broker-a", 0), 10, 7, 3, 0),
    GroupLag(MessageQueue("T", "broker-a", 1), 5, 5, 0, 0),
]


def test_a_group_is_described_with_its_lag_summed() -> None:
    connected = ConsumerConnection(
        connection_set=[
            Connection(client_id="b", client_addr="1.2.3.4:5", language=LanguageCode.JAVA, version=407),
            Connection(client_id="a", client_addr="1.2.3.4:6", language=LanguageCode.PYTHON, version=407),
        ],
        subscription_table={"T": SubscriptionData(topic="T", sub_string="x || y")},
    )
    described = describe("g", connected, LAGS)
    assert described["lag"] == 3
    assert [member["client_id"] for member in described["members"]] == ["a", "b"]
    assert described["members"][1] == {
        "client_id": "b",
        "address": "1.2.3.4:5",
        "language": "JAVA",
        "version": 407,
    }
    assert described["subscriptions"] == [{"topic": "T", "expression": "x || y"}]
    assert described["queues"][0] == {
        "topic": "T",
        "broker": "broker-a",
        "queue_id": 0,
        "max_offset": 10,
        "committed_offset": 7,
        "lag": 3,
    }


def test_a_group_without_members_has_empty_lists() -> None:
    described = describe("g", None, [])
    assert described == {"group": "g", "lag": 0, "members": [], "subscriptions": [], "queues": []}
