import re
from datetime import datetime

import pytest

from triomq.cli.arguments.arguments import _SECTIONS, build_parser, parse
from triomq.cli.arguments.options import ClientOptions
from triomq.cli.arguments.parser import Parser
from triomq.cli.session import client_config
from triomq.client import TlsConfig


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIOMQ_NAMESRV", raising=False)


@pytest.mark.parametrize(
    ("words", "runner", "expected"),
    [
        ("broker", "broker:run", {"settings": {}, "log_level": "info"}),
        ("broker status a:1", "health:status", {"address": "a:1", "log_level": "warning"}),
        ("broker --store status", "broker:run", {"settings": {"root": "status"}}),
        ("topic create T --queues 7 --dry-run", "topic:create", {"topic": "T", "queues": 7, "dry_run": True}),
        ("consume T", "consume:run", {"group": None, "tag": "*", "start": "earliest", "count": None, "timeout": None}),
        ("consume -- --odd", "consume:run", {"topic": "--odd"}),
        ("produce T --key a --key b", "produce:run", {"key": ("a", "b"), "count": None}),
        ("produce T --property x=1 --property y=2", "produce:run", {"properties": (("x", "1"), ("y", "2"))}),
        ("produce T --tag t --rate 5/s", "produce:run", {"tag": "t", "rate": 5.0}),
        ("group create G --disable", "group:create", {"disable": True, "enable": False, "retries": None}),
    ],
)
def test_a_command_line_is_read(words: str, runner: str, expected: dict[str, object]) -> None:
    found = parse(words.split())
    assert found.runner == runner
    assert words.startswith(found.command)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize("words", ["consume T --from", "group reset-offset G --topic T --to"])
@pytest.mark.parametrize("separator", [" ", "="])
def test_a_relative_time_is_no_option(words: str, separator: str) -> None:
    found = vars(parse(f"{words}{separator}-10m".split()))
    assert isinstance(found.get("start", found.get("to")), datetime)


def test_options_of_tls_include_it() -> None:
    def tls(*words: str) -> bool | TlsConfig:
        options = parse(["broker", "status", *words])
        assert isinstance(options, ClientOptions)
        return client_config(options).tls

    assert tls() is False
    assert tls("--tls") is True
    assert tls("--tls-ca", "ca.pem", "--tls-verify", "ca") == TlsConfig(ca="ca.pem", verify="ca")
    assert tls("--tls-cert", "c.pem", "--tls-key", "k.pem") == TlsConfig(cert="c.pem", key="k.pem")


def test_name_server_option_takes_precedence_over_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def namesrv(*words: str) -> str:
        options = parse(["ping", *words])
        assert isinstance(options, ClientOptions)
        return options.namesrv

    assert namesrv() == "127.0.0.1:9876"
    monkeypatch.setenv("TRIOMQ_NAMESRV", "a:1;b:2")
    assert namesrv() == "a:1;b:2"
    assert namesrv("--namesrv", "c:3") == "c:3"


def test_every_command_has_json_help_and_exit_codes() -> None:
    def check(parser: Parser) -> None:
        text = parser.format_help()
        assert parser.commands is not None or "--json" in text
        assert "exit codes: 0 done;" in " ".join(text.split())
        for child in () if parser.commands is None else parser.commands.choices.values():
            check(child)

    check(build_parser())


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("", "required: COMMAND"),
        ("serve", "unknown command 'serve'; commands: broker, "),
        ("topic", "required: COMMAND"),
        ("produce", "required: TOPIC"),
        ("produce T --cou 3", "unknown option --cou; did you mean --count?; see triomq produce --help"),
        ("produce T a", "arguments: a; bodies are lines of stdin: echo BODY | triomq produce T; see triomq produce"),
        ("topic list -z x:1", "triomq topic list: unrecognized arguments: -z x:1; see triomq topic list --help"),
        ("produce T --pop-mode", "RocketMQ 5.x is not supported yet; instead: use the name server"),
        ("broker --aclEnable", "setting for accounts is not supported yet; instead: start the broker with"),
        ("produce T --namespace=n%", "namespace 'n%': only 1 to 60 letters"),
        ("produce T --count 0", "'0' is not a whole number above 0"),
        ("consume T --from soon", "invalid start 'soon'"),
        ("broker --durability maybe", "invalid choice: 'maybe'"),
        ("broker --commit-log-file-size big", "invalid size 'big'"),
        ("ping --namesrv a:1,b:2", "'a:1,b:2': separate name servers with ;, as in 'a:1;b:2'"),
        ("broker --port 1234", "triomq broker: unknown option --port; write --listen HOST:PORT; see"),
        ("broker --brokerIP1 10.0.0.1", "triomq broker: unknown option --brokerIP1; did you mean --advertise?; see"),
        ("broker --tls.server.certPath c", "did you mean --tls-cert?"),
        ("broker -c broker.conf", "triomq broker: unknown option -c; did you mean --config?; see"),
        ("topic list -n localhost:9876", "triomq topic list: unknown option -n; did you mean --namesrv?"),
        ("topic create --topic T", "write the topic without an option"),
        ("topic describe T", "triomq topic: unknown command 'describe'; did you mean show?; commands:"),
        ("produce T --body x", "bodies are the lines of stdin"),
        ("group show g --toppic=T", "did you mean --topic?; see triomq group show --help"),
        ("prodce T", "triomq: unknown command 'prodce'; did you mean produce?; commands: broker, namesrv, dashboard,"),
        ("topic lst", "unknown command 'lst'; did you mean list?; commands: list, create, update, delete, show;"),
    ],
)
def test_an_invalid_command_line_is_one_line(words: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(words.split())
    assert stop.value.code == 2
    text = capsys.readouterr().err
    assert complaint in text
    assert text.count("\n") == 1
    assert "--help" in text


def test_help_shows_common_options_help_all_others(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as stop:
            parse(["broker", option])
        assert stop.value.code == 0
        shown[option] = set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    common = (
        "help help-all json config dashboard listen namesrv-listen register advertise acl insecure store durability"
    )
    assert shown["--help"] == {f"--{name}" for name in common.split()}
    assert shown["--help-all"] - shown["--help"] >= {"--log-level", "--tls", "--role", "--delete-when"}
    assert shown["--help-all"] == set(build_parser("broker").commands.choices["broker"].option_names())


def test_sections_name_options_that_exist() -> None:
    parsers = build_parser().commands.choices
    known = {option for parser in parsers.values() for option in parser.option_names()}
    below = [parser.commands.choices.values() for parser in parsers.values() if parser.commands is not None]
    known |= {option for each in below for parser in each for option in parser.option_names()}
    assert {f"--{name}" for names in _SECTIONS.values() for name in names.split()} <= known
