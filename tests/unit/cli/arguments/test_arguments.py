from datetime import datetime

import pytest

from triomq import __version__
from triomq.cli.arguments.arguments import parse
from triomq.cli.arguments.client_options import (
    BrokerStatusOptions,
    ClientOptions,
    ConsumeOptions,
    GroupResetOffsetOptions,
    GroupShowOptions,
    ProduceOptions,
    TopicCreateOptions,
    TopicListOptions,
)
from triomq.cli.arguments.options import BrokerOptions
from triomq.cli.session import client_config
from triomq.client import TlsConfig

COMMANDS = (
    ["broker"],
    ["produce", "T"],
    ["consume", "T"],
    ["topic", "list"],
    ["topic", "create", "T"],
    ["topic", "update", "T"],
    ["topic", "delete", "T"],
    ["topic", "show", "T"],
    ["group", "list"],
    ["group", "show", "G"],
    ["group", "reset-offset", "G", "--topic", "T", "--to", "earliest"],
    ["group", "replay", "G", "--into", "G2", "--from", "-10m"],
    ["dlq", "list"],
    ["dlq", "redrive", "G"],
    ["broker", "status"],
    ["ping"],
    ["doctor"],
)


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIOMQ_NAMESRV", raising=False)


def test_an_option_that_is_not_given_is_no_setting() -> None:
    runner, name, options = parse(["broker"])
    assert (runner, name) == ("triomq.cli.commands.broker:run", "broker")
    assert isinstance(options, BrokerOptions)
    assert (options.settings, options.log_level) == ({}, "info")


def test_produce_takes_several_keys_and_properties() -> None:
    words = ("--key", "a", "--key", "b", "--property", "x=1", "--property", "y=2", "--tag", "t", "--rate", "5/s")
    options = parse(["produce", "T", *words]).options
    assert isinstance(options, ProduceOptions)
    assert (options.key, options.properties) == (("a", "b"), (("x", "1"), ("y", "2")))
    assert (options.tag, options.rate, options.count, options.in_flight) == ("t", 5.0, None, None)


@pytest.mark.parametrize("words", [["--from", "-10m"], ["--from=-10m"]])
def test_a_relative_time_is_no_option(words: list[str]) -> None:
    options = parse(["consume", "T", *words]).options
    assert isinstance(options, ConsumeOptions)
    assert isinstance(options.start, datetime)


@pytest.mark.parametrize("words", [["--to", "-10m"], ["--to=-10m"]])
def test_offsets_may_be_reset_to_a_relative_time(words: list[str]) -> None:
    options = parse(["group", "reset-offset", "G", "--topic", "T", *words]).options
    assert isinstance(options, GroupResetOffsetOptions)
    assert isinstance(options.to, datetime)


def test_the_status_of_a_broker_is_a_command_of_its_own() -> None:
    runner, name, options = parse(["broker", "status", "127.0.0.1:10911"])
    assert (runner, name) == ("triomq.cli.commands.broker_status:run", "broker status")
    assert isinstance(options, BrokerStatusOptions)
    assert (options.address, options.log_level) == ("127.0.0.1:10911", "warning")


def test_consume_defaults_to_all_messages_without_group() -> None:
    options = parse(["consume", "T"]).options
    assert isinstance(options, ConsumeOptions)
    assert (options.group, options.tag, options.start, options.count, options.timeout) == (
        *(None, "*", "earliest", None, None),
    )


def test_commands_of_two_words_carry_both_in_their_name() -> None:
    runner, name, options = parse(["topic", "create", "T", "--queues", "7", "--dry-run"])
    assert (runner, name) == ("triomq.cli.commands.topic:create", "topic create")
    assert isinstance(options, TopicCreateOptions)
    assert (options.topic, options.queues, options.permission, options.dry_run) == ("T", 7, None, True)
    assert isinstance(parse(["topic", "list"]).options, TopicListOptions)
    assert isinstance(parse(["group", "show", "g"]).options, GroupShowOptions)


def test_options_of_tls_include_it() -> None:
    def tls(*words: str) -> bool | TlsConfig:
        options = parse(["broker", "status", *words]).options
        assert isinstance(options, ClientOptions)
        return client_config(options).tls

    assert tls() is False
    assert tls("--tls") is True
    assert tls("--tls-ca", "ca.pem", "--tls-verify", "ca") == TlsConfig(ca="ca.pem", verify="ca")
    assert tls("--tls-cert", "c.pem", "--tls-key", "k.pem") == TlsConfig(cert="c.pem", key="k.pem")


def test_name_server_option_takes_precedence_over_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def namesrv(*words: str) -> str:
        options = parse(["ping", *words]).options
        assert isinstance(options, ClientOptions)
        return options.namesrv

    assert namesrv() == "127.0.0.1:9876"
    monkeypatch.setenv("TRIOMQ_NAMESRV", "a:1;b:2")
    assert namesrv() == "a:1;b:2"
    assert namesrv("--namesrv", "c:3") == "c:3"


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_has_json_help_and_exit_codes(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert parse([*words, "--json"]).options.json
    with pytest.raises(SystemExit) as stop:
        parse([*words, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "--json" in text
    assert "exit codes: 0 done;" in " ".join(text.split())


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "required: COMMAND"),
        (["serve"], "unknown command 'serve'; commands: broker, "),
        (["topic"], "required: COMMAND"),
        (["produce"], "required: TOPIC"),
        (["produce", "T", "--cou", "3"], "unknown option --cou; did you mean --count?; see triomq produce --help"),
        (
            ["produce", "T", "a"],
            "arguments: a; bodies are lines of stdin: echo BODY | triomq produce T; see triomq pro",
        ),
        (
            ["topic", "list", "-z", "x:1"],
            "triomq topic list: unrecognized arguments: -z x:1; see triomq topic list --h",
        ),
        (["produce", "T", "--pop-mode"], "RocketMQ 5.x is not supported yet; instead: use the name server"),
        (["produce", "T", "--namespace=n%"], "namespace 'n%': only 1 to 60 letters"),
        (
            ["broker", "--aclEnable"],
            "RocketMQ's setting for accounts is not supported yet; instead: start the broker with",
        ),
        (["produce", "T", "--count", "0"], "'0' is not a whole number above 0"),
        (["consume", "T", "--from", "soon"], "invalid start 'soon'"),
        (["broker", "--durability", "maybe"], "invalid choice: 'maybe'"),
        (["broker", "--commit-log-file-size", "big"], "invalid size 'big'"),
    ],
)
def test_invalid_command_line_is_one_line_with_exit_code_2(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(words)
    assert stop.value.code == 2
    text = capsys.readouterr().err
    assert complaint in text
    assert text.count("\n") == 1
    assert "--help" in text


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"triomq {__version__}\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("broker --port 1234", "triomq broker: unknown option --port; write --listen HOST:PORT; see"),
        ("broker --brokerIP1 10.0.0.1", "triomq broker: unknown option --brokerIP1; did you mean --advertise?; see"),
        ("broker --fileReservedTime=48", "did you mean --retention-hours?"),
        ("broker --tls.server.certPath c", "did you mean --tls-cert?"),
        ("broker -c broker.conf", "triomq broker: unknown option -c; did you mean --config?; see"),
        ("topic list -n localhost:9876", "triomq topic list: unknown option -n; did you mean --namesrv?"),
        ("topic create T --partitions 3", "did you mean --queues?"),
        ("topic create --topic T", "write the topic without an option"),
        ("topic describe T", "triomq topic: unknown command 'describe'; did you mean show?; commands:"),
        ("produce T --body x", "bodies are the lines of stdin"),
        ("consume T --from-beginning", "write --from earliest"),
        ("consume T --bootstrap-server x", "did you mean --namesrv?"),
        (
            "produce T --cuont 3",
            "triomq produce: unknown option --cuont; did you mean --count?; see triomq produce --help",
        ),
        ("group show g --toppic=T", "did you mean --topic?; see triomq group show --help"),
        ("prodce T", "triomq: unknown command 'prodce'; did you mean produce?; commands: broker, namesrv, cluster,"),
        (
            "topic lst",
            "triomq topic: unknown command 'lst'; did you mean list?; commands: list, create, update, delete, show;",
        ),
        ("ping --namesrv a:1,b:2", "'a:1,b:2': separate name servers with ;, as in 'a:1;b:2'"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest_one(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(words.split())
    assert stop.value.code == 2
    assert told in capsys.readouterr().err


def test_the_value_of_an_option_is_no_command() -> None:
    assert parse(["broker", "--store", "status"]).name == "broker"
    assert parse(["consume", "--", "--odd"]).name == "consume"
