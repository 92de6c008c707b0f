from typing import Any

import pytest

from triomq.client.cluster.instance import ClientInstance
from triomq.client.config import ClientConfig, parse_namesrv
from triomq.client.consumer.config import ConsumerConfig
from triomq.client.consumer.push import PushConsumer
from triomq.client.producer.config import ProducerConfig
from triomq.protocol.errors import ConfigError
from triomq.protocol.record.message import MessageExt


@pytest.mark.parametrize(
    ("given", "addresses"),
    [
        ("a:1;b:2", ("a:1", "b:2")),
        (["a:1", " b:2;c "], ("a:1", "b:2", "c:9876")),
        ("a:1; ;a:1;", ("a:1",)),
        ("[::1];[fe80::1]:77", ("[::1]:9876", "[fe80::1]:77")),
    ],
)
def test_name_servers_are_read(given: str | list[str], addresses: tuple[str, ...]) -> None:
    assert parse_namesrv(given) == addresses


@pytest.mark.parametrize("given", ["", " ; ", [], "http://a:1", "a:b", "a:0", "a:70000", "fe80::1"])
def test_name_servers_that_cannot_be_read_are_refused(given: str | list[str]) -> None:
    with pytest.raises(ConfigError):
        ClientInstance(given)


@pytest.mark.parametrize(
    "setting", [{"api_timeout_s": 0}, {"idle_timeout_s": -1}, {"advertise": "somehow"}, {"header_format": 77}]
)
def test_impossible_settings_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ClientConfig(**setting)


@pytest.mark.parametrize(
    ("argument", "other"), [("config", ConsumerConfig()), ("settings", ClientConfig()), ("settings", ProducerConfig())]
)
async def test_settings_of_another_kind_are_refused_by_name(argument: str, other: Any) -> None:
    def on_message(message: MessageExt) -> None: ...

    with pytest.raises(ConfigError, match=f"^{argument}: a {type(other).__name__} is given; pass a C.*Config or None"):
        async with PushConsumer("G", subscriptions={"T": "*"}, namesrv="a", on_message=on_message, **{argument: other}):
            pass
