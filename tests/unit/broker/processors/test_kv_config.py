"""The requests for the name server's key-value table."""

import orjson
import pytest

from tests.unit.broker.recording import MakeBroker, Peer
from triomq.broker.server import Broker
from triomq.protocol.codes import RequestCode, ResponseCode


@pytest.fixture
def peer(broker: Broker) -> Peer:
    return Peer(broker, "127.0.0.1:50001")  # others may not change it


def put(peer: Peer, key: str, value: str) -> None:
    fields = {"namespace": "N", "key": key, "value": value}
    assert peer.get(RequestCode.PUT_KV_CONFIG, fields).code == ResponseCode.SUCCESS


def listed(peer: Peer) -> dict[str, str]:
    response = peer.get(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"})
    table: dict[str, str] = orjson.loads(response.body)["table"]
    return table


def test_values_are_put_read_listed_and_deleted(peer: Peer) -> None:
    put(peer, "one", "1 ünd")
    put(peer, "two", "2")
    assert peer.get(RequestCode.GET_KV_CONFIG, {"namespace": "N", "key": "one"}).ext_fields == {"value": "1 ünd"}
    assert listed(peer) == {"one": "1 ünd", "two": "2"}
    for _ in range(2):  # the second time there is nothing to delete
        response = peer.get(RequestCode.DELETE_KV_CONFIG, {"namespace": "N", "key": "one"})
        assert response.code == ResponseCode.SUCCESS
    assert listed(peer) == {"two": "2"}


@pytest.mark.parametrize(
    ("code", "fields", "remark"),
    [
        (RequestCode.GET_KV_CONFIG, {"namespace": "N", "key": "K"}, "No config item, Namespace: N Key: K"),
        (RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"}, "No config item, Namespace: N"),
    ],
)
def test_what_is_not_there_is_not_found(peer: Peer, code: int, fields: dict[str, str], remark: str) -> None:
    response = peer.get(code, fields)
    assert (response.code, response.remark) == (ResponseCode.QUERY_NOT_FOUND, remark)


def test_a_request_without_its_key_is_refused(peer: Peer) -> None:
    response = peer.get(RequestCode.PUT_KV_CONFIG, {"namespace": "N", "value": "1"})
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "'key' is missing" in (response.remark or "")


def test_values_are_on_disk_with_the_other_tables(peer: Peer, make_broker: MakeBroker) -> None:
    put(peer, "one", "1")
    peer.broker.save_tables()
    assert listed(Peer(make_broker())) == {"one": "1"}
