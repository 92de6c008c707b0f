"""The file of quotas, and the requests above a quota of their account or address."""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.commands import make_command
from tests.unit.broker.recording import PLAIN, Clock, MakeBroker, Peer
from triomq.broker.limits.quotas import Limits, Usage, leave, read_quotas
from triomq.broker.server import Broker
from triomq.protocol.bodies.route import TopicConfig
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import ConfigError, RefusedError
from triomq.protocol.record.batch import encode_batch
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.signing import Credentials

FILE = """
default: {sends_per_s: 100, out_bytes_per_s: 2MiB}
accounts:
  reports: {sends_per_s: 0.5, connections: 0, out_bytes_per_s: null}
  12345678:
addresses:
  "10.0.1.*": {connections: 3}
  "10.0.*.*": {connections: 4, in_bytes_per_s: 1000}
"""
DEFAULT = Limits(sends_per_s=100, out_bytes_per_s=2 * 1024**2)


def test_entry_overrides_the_default() -> None:
    rules = read_quotas(FILE)
    assert rules.of_account("reports") == Limits(sends_per_s=0.5, connections=0)
    assert rules.of_account("12345678") == rules.of_account("another") == rules.of_address("::1") == DEFAULT
    assert rules.of_address("10.0.1.7").connections == 3  # the first that matches
    assert rules.of_address("10.0.2.7").connections == 4
    assert rules.of_address("10.1.2.7", Limits()) == Limits()


@pytest.mark.parametrize("text", ["", "# nothing", "default:", "accounts: {}"])
def test_file_without_quotas_limits_nothing(text: str) -> None:
    rules = read_quotas(text)
    assert rules.of_account("a") == rules.of_address("10.0.0.1") == Limits()


@pytest.mark.parametrize("name", ["configuration.md", "deployment.md"])
def test_examples_in_the_documents_are_valid(name: str) -> None:
    text = (Path(__file__).parents[4] / "docs" / name).read_text()
    (example,) = re.findall(r"```yaml\n(default:.*?)```", text, re.DOTALL)
    rules = read_quotas(example)
    assert None not in (rules.default.sends_per_s, rules.default.connections)
    assert rules.accounts


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [", "line 1: this is not YAML"),
        ("- a", "line 1: here belong the fields default, accounts"),
        ("defaults: {}", "line 1: there is no field 'defaults', only default, accounts, addresses"),
        ("\naccounts: [a]", "line 2: here belong accounts by name"),
        ("accounts:\n  a: {}\n  a: {}", "line 3: a is given twice"),
        ("accounts:\n  a: 5", "line 2: here belong the fields sends_per_s, in_bytes_per_s"),
        ("default: {sends: 5}", "line 1: there is no field 'sends'"),
        ("default: {sends_per_s: 0}", "line 1: sends_per_s must be a number above 0, not '0'; null lifts a quota"),
        ("default: {sends_per_s: -1}", "sends_per_s must be a number above 0"),
        ("default: {sends_per_s: .inf}", "sends_per_s must be a number above 0"),
        ("default: {sends_per_s: [1]}", "sends_per_s must be a number above 0"),
        ("default:\n  in_bytes_per_s: 5MB", "line 2: in_bytes_per_s must be bytes, or a number with KiB"),
        ("default: {out_bytes_per_s: 1.5}", "out_bytes_per_s must be bytes"),
        ("default: {connections: 1.5}", "connections must be a whole number, not '1.5'"),
        ("topics: {T: {}}", "line 1: there is no field 'topics', only default, accounts, addresses"),
        (
            "default: {disk_share: 1}",
            "line 1: there is no field 'disk_share', only sends_per_s, in_bytes_per_s, out_bytes_per_s, connections",
        ),
        ("addresses:\n  10.0.0.0/8: {}", "line 2: address pattern '10.0.0.0/8'"),
        ('addresses: {"": {}}', "line 1: an address pattern is empty"),
    ],
)
def test_mistake_is_reported_with_its_line(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_quotas(text)
    assert reason in str(caught.value)


BUSY = ResponseCode.SYSTEM_BUSY
ONE = Credentials("account-1", "secret-1")
TWO = Credentials("account-2", "secret-2")
ACCOUNTS = "accounts:\n" + "".join(
    f"- {{accessKey: account-{n}, secretKey: secret-{n}, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}}\n"
    for n in (1, 2)
)
OpenWith = Callable[..., Broker]


@pytest.fixture
def open_with(make_broker: MakeBroker, tmp_path: Path) -> OpenWith:
    """Open a broker with quotas, and with accounts if that is wanted."""

    def make(quotas: str, *, accounts: bool = False, **settings: Any) -> Broker:
        (tmp_path / "quotas.yml").write_text(quotas)
        if accounts:
            (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
            settings["acl"] = tmp_path / "plain_acl.yml"
        broker = make_broker(quotas=tmp_path / "quotas.yml", **settings)
        broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4))
        return broker

    return make


def send(account: Credentials | None = None, body: bytes = b"x", **fields: Any) -> RemotingCommand:
    """Return a send that is served by the short way, unless fields prevent it."""
    named = {**PLAIN, **fields}
    return make_command(RequestCode.SEND_MESSAGE_V2, 7, 0, account.sign(named, body) if account else named, body)


def codes(peer: Peer, *commands: RemotingCommand) -> list[int]:
    peer.sent.clear()
    peer.read(*commands)
    return [response.code for response in peer.sent]


def pulled(peer: Peer, **fields: Any) -> int:
    response = peer.pull("T", 0, **fields)
    assert response is not None
    return response.code


def stored(broker: Broker) -> int:
    return sum(broker.store.reader.max_offset_in_queue("T", queue_id) for queue_id in range(4))


@pytest.mark.parametrize("fields", [{}, {"l": "0"}])  # by the short way, and not
@pytest.mark.parametrize("quota", ["sends_per_s: 4", "in_bytes_per_s: 4000"])
def test_send_above_quota_is_refused_with_waiting_time(
    open_with: OpenWith, clock: Clock, fields: dict[str, Any], quota: str
) -> None:
    broker = open_with(f"default: {{{quota}}}")
    peer = Peer(broker)
    sends = [send(body=bytes(1000), **fields)] * 6
    assert codes(peer, *sends) == [0, 0, 0, 0, BUSY, BUSY]
    assert stored(broker) == 4
    refused = peer.sent[-1]
    assert f"the address 192.0.2.9 has used up its quota {quota.partition(':')[0]}" in str(refused.remark)
    clock.now_ms += int(refused.ext_fields["retryAfterMs"]) + 1
    assert codes(peer, sends[0]) == [0]
    assert broker.statistics.limited_requests == 2


def test_accounts_and_addresses_have_separate_quotas(open_with: OpenWith) -> None:
    broker = open_with("default: {sends_per_s: 2}\naccounts: {account-2: {sends_per_s: 1}}", accounts=True)
    peer, other = Peer(broker), Peer(broker, "192.0.2.10:50001")
    commands = [send(ONE), send(TWO), send(TWO), send(ONE), send(ONE), send(TWO, l="0")]
    assert codes(peer, *commands) == [0, 0, BUSY, 0, BUSY, BUSY]
    assert codes(other, send(ONE)) == [BUSY]
    broker = open_with("default: {sends_per_s: 2}")
    assert codes(Peer(broker), *[send()] * 3) == [0, 0, BUSY]
    assert codes(Peer(broker, "192.0.2.9:50009"), send()) == [BUSY]  # the same address
    assert codes(Peer(broker, "192.0.2.10:50001"), send()) == [0]


async def test_ipv6_network_of_64_bits_shares_quotas(open_with: OpenWith, tmp_path: Path) -> None:
    rules = "default: {sends_per_s: 4}\naddresses: {'2001:db8::5': {sends_per_s: 2}}"
    broker = open_with(rules)

    def sends(*hosts: str) -> list[int]:
        return [code for host in hosts for code in codes(Peer(broker, f"{host}:50001"), send())]

    assert sends("2001:db8::1", "2001:db8::5", "2001:db8::2", "2001:db8::3", "2001:db8::4") == [0] * 5
    assert sends("2001:db8::5", "2001:db8::5", "2001:db8:0:1::5") == [0, BUSY, 0]  # the entry is for one address
    peer = Peer(broker, "2001:db8::7:50001")
    assert codes(peer, send()) == [BUSY]
    assert "the address 2001:db8::/64 has used up its quota sends_per_s, 4" in str(peer.sent[-1].remark)
    (tmp_path / "quotas.yml").write_text("default: {sends_per_s: 4, in_bytes_per_s: 1MiB}")
    assert broker.pipeline.access.quotas is not None
    await broker.pipeline.access.quotas.look()
    assert sends("2001:db8::8") == [BUSY]  # other quotas keep their usage


def test_denied_request_uses_no_quota(open_with: OpenWith) -> None:
    broker = open_with("default: {sends_per_s: 1}", accounts=True)
    peer = Peer(broker)
    forged = Credentials("account-1", "not the secret")
    assert codes(peer, send(forged), send(forged, l="0"), send(), send(ONE)) == [1, 1, 1, 0]


def test_all_requests_that_store_count_as_sends(open_with: OpenWith) -> None:
    broker = open_with("default: {sends_per_s: 1}")
    batch = encode_batch([(0, b"x", b"")] * 3)
    for number, (code, fields, body) in enumerate(
        [
            (RequestCode.SEND_MESSAGE, {"topic": "T"}, b"x"),
            (RequestCode.SEND_BATCH_MESSAGE, {**PLAIN, "m": "true", "i": ""}, batch),
            (RequestCode.SEND_REPLY_MESSAGE_V2, PLAIN, b"x"),
            (RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "G", "offset": "0", "delayLevel": "0"}, b""),
        ]
    ):
        peer = Peer(broker, f"192.0.2.{number + 20}:50001")
        peer.ask(code, fields, body)
        assert peer.put("T").code == BUSY, code


@pytest.mark.parametrize("level", ["0", "-1"])  # retried, or a dead letter
def test_copy_of_sent_back_message_counts(open_with: OpenWith, clock: Clock, level: str) -> None:
    broker = open_with("default: {in_bytes_per_s: 5000}")
    Peer(broker, "192.0.2.8:50001").put("T", bytes(3000))
    peer, back = Peer(broker), {"group": "G", "offset": "0", "delayLevel": level}
    answers = [peer.get(RequestCode.CONSUMER_SEND_MSG_BACK, back).code for _ in range(4)]
    assert answers == [0, 0, BUSY, BUSY]
    clock.now_ms += 1300
    assert peer.get(RequestCode.CONSUMER_SEND_MSG_BACK, back).code == 0


def test_waiting_send_backs_share_one_burst(clock: Clock) -> None:
    usage = Usage("", "192.0.2.9", clock)
    usage.set_limits(Limits(in_bytes_per_s=100))
    for size in (90, 50):  # both are admitted, and wait for the disk
        usage.send(size)
    usage.copy(1000, 50)  # it needs no room besides that of its request
    with pytest.raises(RefusedError, match="in_bytes_per_s, 100"):
        usage.copy(1000, 90)
    clock.now_ms += 10_401
    usage.copy(1000, 90)


async def test_messages_above_a_quota_are_not_delivered(open_with: OpenWith, clock: Clock) -> None:
    broker = open_with("default: {out_bytes_per_s: 1000}\naddresses: {192.0.2.8: {out_bytes_per_s: null}}")
    peer, free = Peer(broker), Peer(broker, "192.0.2.8:50001")
    free.put("T", b"y" * 3000)
    asked = peer.pull("T", 1, sysFlag=6)
    assert asked is None  # held
    assert peer.usage is not None
    peer.usage.wrote(9000)  # as a connection does
    for refused in (peer.pull("T", 0), peer.get(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0"})):
        assert refused is not None
        assert (refused.code, refused.ext_fields["retryAfterMs"]) == (BUSY, "5000")
    assert peer.put("T").code == 0  # its sends are still served
    broker.pulls.serve_arrivals()
    assert peer.sent[-1].code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert pulled(free) == 0
    clock.now_ms += 5001
    assert pulled(peer) == 0


def test_quota_limits_connections_of_an_account(open_with: OpenWith) -> None:
    broker = open_with("default: {connections: 2}", accounts=True)
    first, second, third = (Peer(broker, f"192.0.2.{number}:50001") for number in range(3))
    assert [codes(peer, send(ONE)) for peer in (first, second, third, first)] == [[0], [0], [BUSY], [0]]
    assert "quota connections, 2: try again later" in str(third.sent[0].remark)
    assert codes(third, send(TWO)) == [0]
    assert codes(first, send(TWO)) == [0]  # so it counts for this account now
    assert codes(third, send(ONE)) == [0]
    leave(second.as_connection)
    assert codes(first, send(ONE)) == [0]


def test_quota_limits_connections_of_an_address(open_with: OpenWith) -> None:
    quotas = "default: {connections: 2}\naddresses: {10.0.0.*: {connections: 1}}"
    for accounts, most in ((False, 2), (True, 20)):  # default is for accounts, where there are any
        limits = open_with(quotas, accounts=accounts).context.connection_limits
        for host, count in (("10.0.0.7", 1), ("10.0.0.8", 1), ("192.0.2.1", most), ("127.0.0.1", most)):
            admitted = [limits.admits(host, is_local=False, is_namesrv=number % 2 == 1) for number in range(20)]
            assert sum(admitted) == count
            limits.all.leave(host)
            assert limits.admits(host, is_local=False, is_namesrv=True)


async def test_changed_quotas_apply_unless_wrong_or_missing(
    open_with: OpenWith, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = open_with("default: {sends_per_s: 2}")
    peer, path = Peer(broker), tmp_path / "quotas.yml"
    assert broker.pipeline.access.quotas is not None
    assert codes(peer, *[send()] * 3) == [0, 0, BUSY]
    path.write_text("default: {sends_per_s: 0}")
    await broker.pipeline.access.quotas.look()
    path.unlink()
    await broker.pipeline.access.quotas.look()
    assert codes(peer, send()) == [BUSY]
    path.write_text("default: {}")
    await broker.pipeline.access.quotas.look()
    assert codes(peer, *[send()] * 5) == [0] * 5
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert ["line 1: sends_per_s" in errors[0], "no such file" in errors[1], len(errors)] == [True, True, 2]


def test_idle_addresses_are_forgotten(open_with: OpenWith, clock: Clock) -> None:
    broker = open_with("default: {sends_per_s: 1}")
    assert broker.pipeline.access.quotas is not None
    for number in range(5000):
        peer = Peer(broker, f"10.0.{number // 250}.{number % 250}:50001")
        codes(peer, send())
        if number:
            leave(peer.as_connection)
        clock.now_ms += 10
    assert len(broker.pipeline.access.quotas._usages) < 3000
    assert codes(Peer(broker, "10.0.0.0:50002"), send()) == [0]
