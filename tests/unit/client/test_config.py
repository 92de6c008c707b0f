from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.client.fake_broker import FakeBroker
from triomq.client import Producer, PullConsumer
from triomq.client.cluster.instance import ClientInstance
from triomq.client.config import ClientConfig, load_credentials, parse_namesrv
from triomq.client.consumer.config import ConsumerConfig
from triomq.client.consumer.push import PushConsumer
from triomq.client.producer.config import ProducerConfig
from triomq.protocol.codes import SerializeType
from triomq.protocol.errors import ConfigError
from triomq.protocol.record.message import Message, MessageExt
from triomq.protocol.requests.catalogue import CATALOGUE
from triomq.protocol.wire.signing import Credentials


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
    ("config", "setting"),
    [
        (ClientConfig, {"api_timeout_s": 0}),
        (ClientConfig, {"send_buffer_limit_bytes": -1}),
        (ClientConfig, {"advertise": "somehow"}),
        (ClientConfig, {"header_format": 77}),
        (ProducerConfig, {"send_timeout_s": 0}),
        (ProducerConfig, {"retries": -1}),
        (ProducerConfig, {"max_message_size_bytes": 0}),
        (ProducerConfig, {"compress_over_bytes": -1}),
        (ProducerConfig, {"on_busy": "sleep"}),
    ],
)
def test_impossible_settings_are_refused(config: Callable[..., object], setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        config(**setting)


@pytest.mark.parametrize(
    ("argument", "other"), [("config", ConsumerConfig()), ("settings", ClientConfig()), ("settings", ProducerConfig())]
)
async def test_settings_of_another_kind_are_refused_by_name(argument: str, other: Any) -> None:
    def on_message(message: MessageExt) -> None: ...

    with pytest.raises(ConfigError, match=f"^{argument}: a {type(other).__name__} is given; pass a C.*Config or None"):
        async with PushConsumer("G", subscriptions={"T": "*"}, namesrv="a", on_message=on_message, **{argument: other}):
            pass


ACCOUNT = Credentials("me", "hush")
LINES = "accessKey: me\nsecretKey: hush\n"


def test_an_account_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCOUNT", LINES.replace("\n", ";"))
    assert load_credentials("env:ACCOUNT") == ACCOUNT


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("hush", "must be env:NAME or file:PATH"),
        ("file:", "must be env:NAME or file:PATH"),
        ("me:hush", "must be env:NAME or file:PATH"),
        ("env:NO_SUCH_ACCOUNT", "no variable NO_SUCH_ACCOUNT"),
        ("file:/no/such/file", "cannot read /no/such/file: No such file or directory"),
    ],
)
def test_unreadable_source_is_named_without_its_secret(source: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        load_credentials(source)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("content", [b"secretKey: hush", b"\xff\xfe hush"])
def test_file_without_account_is_named_not_quoted(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "account"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=str(path)) as caught:
        load_credentials(f"file:{path}")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("header_format", [SerializeType.JSON, SerializeType.ROCKETMQ])
async def test_requests_to_brokers_are_signed_as_sent(fake_broker: FakeBroker, header_format: SerializeType) -> None:
    config = ClientConfig(credentials=ACCOUNT, header_format=header_format)
    fake_broker.add_topic("Topic")
    async with Producer("group", namesrv=fake_broker.address, config=config) as producer:
        await producer.send(Message("Topic", b"body"))
        await producer.send(Message("Topic", bytes(100_000)))  # not copied into the frame
        await producer.send_batch([Message("Topic", b"one"), Message("Topic", b"two")])
        await producer.send_oneway(Message("Topic", b"body"))
    async with PullConsumer("group", namesrv=fake_broker.address, config=config) as pull:
        await pull.queues("Topic")
    codes = {request.code for request in fake_broker.requests}
    assert len(codes) >= 5  # routes, heartbeats, leaving and the two ways to send
    for request in fake_broker.requests:
        is_signed = not CATALOGUE[request.code].kind.is_for_name_server
        assert is_signed == ("Signature" in request.ext_fields)
        assert not is_signed or request.ext_fields == ACCOUNT.sign(request.ext_fields, request.body)


def test_unknown_option_is_named() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'retries'"):
        Producer("P", namesrv="a:1", retries=0)  # type: ignore[call-arg]
