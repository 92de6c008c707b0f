"""Settings of a broker from command line, environment and file."""

import dataclasses
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from triomq.broker.config import BrokerConfig
from triomq.cli.arguments.arguments import parse
from triomq.cli.arguments.options import BrokerOptions, ConfiguredOptions, NamesrvOptions
from triomq.cli.arguments.values import KINDS
from triomq.cli.commands.broker import make_config, make_namesrv_config, run, run_namesrv
from triomq.cli.configuration import collect
from triomq.cli.errors import UsageError
from triomq.common.broker_settings import NAMESRV_SETTINGS, OPTIONS, SETTINGS, Setting, variable_of
from triomq.protocol.errors import ConfigError
from triomq.storage.config import StoreConfig

CONFIGURATION = (Path(__file__).resolve().parents[3] / "docs" / "configuration.md").read_text(encoding="utf-8")
#: Values of metavariables that not every text is a value of.
SAMPLES = {
    "": "true",
    "COUNT": "3",
    "HOUR[;HOUR...]": "4;16",
    "HOURS": "1.5",
    "N": "7",
    "PERCENT": "50",
    "S": "90s",
    "NUMBER": "3",
}
_NOT_PYTHON = ("listen", "tls", "metrics")  # objects there
IN_FILES = [row for row in SETTINGS if row.option]
COMMANDS = {"broker": IN_FILES, "namesrv": NAMESRV_SETTINGS}


def options(*words: str, command: str = "broker") -> ConfiguredOptions:
    found = parse([command, *words])
    assert isinstance(found, ConfiguredOptions)
    return found


def values(*words: str, command: str = "broker", **environment: str) -> dict[str, Any]:
    return {field: value for field, (value, _) in collect(options(*words, command=command), environment).items()}


def sample(row: Setting) -> str:
    if row.metavar == "SIZE":
        return "2GiB"
    return SAMPLES.get(row.metavar) or (row.metavar.split("|")[0] if "|" in row.metavar else f"a-{row.key}")


@pytest.mark.parametrize(
    ("command", "row"),
    [pytest.param(name, row, id=f"{name}-{row.key}") for name, rows in COMMANDS.items() for row in rows],
)
def test_all_ways_set_the_same_value(command: str, row: Setting, tmp_path: Path) -> None:
    text, file = sample(row), tmp_path / "server.toml"
    given = values(command=command, **{variable_of(command, row.key): text})
    assert list(given) == [row.field]
    plain = text if row.metavar in ("", "COUNT", "N", "NUMBER", "PERCENT") else json.dumps(text)
    for key in (row.key, row.key.replace("-", "_")):
        file.write_text(f"{key} = {[text] if row.option.endswith('...') else plain}\n")
        assert values("--config", str(file), command=command) == given
    if row.option.startswith("--"):
        assert values(f"--{row.key}", *([text] if row.metavar else []), command=command) == given


@pytest.mark.parametrize("row", IN_FILES, ids=lambda row: row.key)
def test_a_default_is_that_of_the_configuration(row: Setting) -> None:
    defaults = {field.name: field for kind in (BrokerConfig, StoreConfig) for field in dataclasses.fields(kind)}
    if row.metavar in KINDS and row.metavar in SAMPLES | {"SIZE": ""} and row.default[0].isdecimal():
        assert KINDS[row.metavar](row.default) == defaults[row.field].default
    elif row.field in ("cluster_name", "broker_name", "region"):
        assert row.default == defaults[row.field].default


def test_command_line_precedes_environment_precedes_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('cluster-name = "file"\nbroker-name = "file"\nregion = "file"\nno-index = true\n')
    environment = {
        "TRIOMQ_BROKER_BROKER_NAME": "b",
        "TRIOMQ_BROKER_CLUSTER_NAME": "b",
        "TRIOMQ_BROKER_NO_INDEX": "false",
    }
    found = collect(options("--config", str(file), "--cluster-name", "a"), environment)
    assert {field: (value, source.partition(",")[0]) for field, (value, source) in found.items()} == {
        "cluster_name": ("a", "command line"),
        "broker_name": ("b", "environment"),
        "index": (True, "environment"),
        "region": ("file", str(file)),
    }


def test_a_broker_conf_of_rocketmq_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(
        "# brokerName = commented\nbrokerClusterName = C\nbrokerName=b-1\nbrokerId = 0\nbrokerRole=SYNC_MASTER\n"
        "deleteWhen = 04;16\nfileReservedTime=48\nflushDiskType = SYNC_FLUSH\nlistenPort=10921\nbindAddress=127.0.0.2\n"
        "namesrvAddr=10.0.0.1:9876;10.0.0.2:9876\nbrokerIP1=10.0.0.9\nstorePathRootDir=/data\nautoCreateTopicEnable=false\n"
        "transactionTimeOut=7000\ntimerMaxDelaySec=60\nmessageDelayLevel=1s 5s\nmessageIndexEnable=false\n"
        "haListenPort=10912\nsendMessageThreadPoolNums=16\ntraceTopicEnable=true\nwarmMapedFileEnable=true\n"
        "tls.server.mode=disabled\nregionId=R\naclEnable=false\n"
    )
    made = make_config(values("--config", str(file)))
    store, (listener,) = made.store, made.listeners
    assert (made.cluster_name, made.broker_name, made.region, made.auto_create_topic) == ("C", "b-1", "R", False)
    assert (str(listener.broker), listener.advertise, len(made.register)) == ("127.0.0.2:10921", "10.0.0.9", 2)
    assert (store.root, store.durability.value, store.index) == (Path("/data"), "sync", False)
    assert (made.role, str(made.ha_listen), made.slave_read_ratio) == ("sync-master", "127.0.0.2:10912", None)
    assert (store.retention_hours, store.delete_when, str(store.delay_levels)) == (48, (4, 16), "1s 5s")
    assert (made.transaction_timeout_s, made.timer_max_delay_s) == (7, 60)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning == f"settings without effect file={file} names=sendMessageThreadPoolNums,warmMapedFileEnable"


def test_a_broker_conf_makes_a_slave(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(
        "brokerRole=SLAVE\nbrokerId=2\nnamesrvAddr=10.0.0.5:9876\nhaMasterAddress=10.0.0.6:10912\nslaveReadEnable=true\n"
        "accessMessageInMemoryMaxRatio=0\nslaveTimeout=1500\n"
    )
    made = make_config(values("--config", str(file)))
    assert (made.role, made.broker_id, str(made.ha_master), made.ha_listen) == ("slave", 2, "10.0.0.6:10912", None)
    assert (made.slave_read_ratio, made.slave_timeout_s) == (0, 1.5)
    file.write_text("slaveReadEnable=true\n")
    assert make_config(values("--config", str(file))).slave_read_ratio == 40


def test_a_namesrv_conf_of_rocketmq_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text(
        "rocketmqHome=/opt/rocketmq\nkvConfigPath=/data/config/kvConfig.json\norderMessageEnable=true\nlistenPort=9886\n"
        "enableControllerInNamesrv=false\nclusterTest=false\ntls.server.mode=disabled\n"
    )
    made = make_namesrv_config(values("--config", str(file), command="namesrv"))
    assert (made.root, str(made.listen), made.order_messages) == (Path("/data"), "127.0.0.1:9886", True)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning == f"settings without effect file={file} names=rocketmqHome,clusterTest"
    file.write_text("bindAddress=127.0.0.2\n")
    assert str(make_namesrv_config(values("--config", str(file), command="namesrv")).listen) == "127.0.0.2:9876"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("kvConfigPath=/data/kvConfig.json", "kvConfigPath: the value is not FOLDER/config/kvConfig.json"),
        ("kvConfigPath=/config/kvConfig.json", "kvConfigPath: the value is not FOLDER/config/kvConfig.json"),
        ("enableControllerInNamesrv=true", "a group of brokers that elects its master is not supported yet"),
        ("orderMesageEnable=true", "unknown setting orderMesageEnable; did you mean orderMessageEnable?"),
        ("bindAddress=0.0.0.0", "listening on 0.0.0.0:9876 would allow every client"),
    ],
)
def test_a_wrong_namesrv_conf_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "namesrv.conf").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        make_namesrv_config(values("--config", str(tmp_path / "namesrv.conf"), command="namesrv"))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--role slave --register a:1", "a slave needs a broker id above 0"),
        ("--broker-id 1", "broker id 1 is a slave's"),
        ("--role sync-master --ha-listen 127.0.0.1:1 --broker-id 1", "broker id 1 is a slave's"),
        ("--ha-master 127.0.0.1:1", "only a slave has a master"),
        ("--role slave --broker-id 1 --ha-master a:1", "a slave needs --register"),
        ("--role sync-master", "a sync-master needs --ha-listen"),
        (
            "--ha-listen 0.0.0.0:0 --acl a.yml",
            "has no accounts; name the slaves' networks with --brokers-from",
        ),
        ("--fast-listen 0.0.0.0:0", "listening on 0.0.0.0:0 would allow every client"),
        ("--ha-listen 10912", "--ha-listen: '10912' is not HOST:PORT"),
    ],
)
def test_a_wrong_role_is_refused(words: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        make_config(values(*words.split()))


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("b.conf", "brokerNmae=b", "b.conf: unknown setting brokerNmae; did you mean brokerName?"),
        ("b.conf", "maxMessageSize=4MiB", "b.conf: maxMessageSize: the value is not a number"),
        ("b.conf", "flushDiskType=SYNC", "the value is not ASYNC_FLUSH or SYNC_FLUSH"),
        ("b.conf", "tls.server.mode=on", "the value is not disabled, permissive, enforcing"),
        ("b.conf", "brokerRole=MASTER", "the value is not ASYNC_MASTER, SYNC_MASTER, SLAVE"),
        ("b.conf", "brokerId=x", "b.conf: brokerId: the value is not a number"),
        ("b.conf", "enableDLegerCommitLog=true", "a group of brokers that elects its master is not supported yet"),
        ("b.conf", "aclEnable=true", "start the broker with --acl FILE"),
        ("b.toml", "broker_nmae = 'b'", "b.toml: unknown setting broker_nmae; did you mean broker-name?"),
        ("b.toml", "memory-budget = 'big'", "b.toml: memory-budget: invalid size 'big'"),
        ("b.toml", "durability = 'maybe'", "the value is not async, sync"),
        ("b.toml", "[store]\npath = 'x'", "b.toml: store: the value is not a single value"),
        ("b.toml", "no-index = 1", "the value is not true or false"),
        ("b.toml", "= 1", "b.toml: Invalid statement"),
        ("none", None, "No such file"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, name: str, text: str | None, complaint: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=re.escape(complaint)):
        collect(options("--config", str(tmp_path / name)), {})


def test_accounts_of_a_broker_conf_need_their_file(tmp_path: Path) -> None:
    file = tmp_path / "b.conf"
    file.write_text("aclEnable=true\n")
    assert values("--config", str(file), "--acl", "accounts.yml") == {"acl": "accounts.yml"}


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("TRIOMQ_BROKER_MEMORY", "1", "environment: unknown setting TRIOMQ_BROKER_MEMORY; did you mean"),
        ("TRIOMQ_BROKER_DELETE_WHEN", "24", "TRIOMQ_BROKER_DELETE_WHEN: invalid hours '24'"),
    ],
)
def test_a_wrong_variable_is_refused_by_name(name: str, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        values(**{name: text})


def test_empty_and_kubernetes_variables_are_no_settings() -> None:
    assert values(TRIOMQ_BROKER_ADVERTISE="") == {}
    names = ("TRIOMQ_BROKER_PORT", "TRIOMQ_BROKER_PORT_10911_TCP", "TRIOMQ_BROKER_SERVICE_HOST")
    assert values(**dict.fromkeys(names, "tcp://10.0.0.1:10911")) == {}


def test_file_and_log_options_come_from_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRIOMQ_BROKER_CONFIG", str(tmp_path / "b.toml"))
    monkeypatch.setenv("TRIOMQ_BROKER_LOG_LEVEL", "debug")
    (tmp_path / "b.toml").write_text("region = 'R'\n")
    assert options().log_level == "debug"
    assert options("--log-level", "error").log_level == "error"
    assert {field: value for field, (value, _) in collect(options()).items()} == {"region": "R"}
    assert parse(["broker", "status"]).log_level == "warning"


def test_each_setting_is_printed_with_its_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--print-config", "--json", "--store", str(tmp_path), "--delete-when", "4;16", "--no-index")
    asked = options(*words)
    assert isinstance(asked, BrokerOptions)
    assert run(asked) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = {line["setting"]: (line["value"], line["source"], line["rocketmq"]) for line in lines}
    assert list(found) == [row.key for row in IN_FILES]
    assert found["delete-when"] == ("4;16", "command line", "deleteWhen")
    assert found["no-index"] == ("true", "command line", "messageIndexEnable=false")
    assert found["memory-budget"] == ("128MiB", "default", None)
    assert str(make_namesrv_config({}).listen) == NAMESRV_SETTINGS[0].default
    asked = options("--print-config", "--json", "--listen", "127.0.0.1:1", command="namesrv")
    assert isinstance(asked, NamesrvOptions)
    assert run_namesrv(asked) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["setting"] for line in lines] == [row.key for row in NAMESRV_SETTINGS]
    assert [line["value"] for line in lines[:3]] == ["127.0.0.1:1", "triomq/namesrv in the user's data folder", "off"]


def test_documented_options_match_the_rows() -> None:
    rows = re.findall(r"^\| `(--[^`]+)` \| (.*?) ?\| (.*?) \| .+ \|$", CONFIGURATION, re.MULTILINE)
    table = [(option.replace("\\|", "|"), name.strip("`"), default.strip("`")) for option, name, default in rows]
    assert table == [(row.option, row.rocketmq, row.default) for row in OPTIONS]


def test_the_tables_for_python_have_rocketmqs_names() -> None:
    section = CONFIGURATION.partition("## Broker: in Python")[2].partition("## Client")[0]
    table = dict(re.findall(r"^\| `(\w+)` \| (.*) \| .+ \|$", section, re.MULTILINE))
    names = {
        row.field: row.name for row in SETTINGS if row.name and row.field in table and row.field not in _NOT_PYTHON
    }
    assert len(names) > 40
    assert {field: name for field, name in names.items() if f"`{name}`" not in table[field]} == {}


def test_the_documents_name_the_live_settings() -> None:
    (section,) = re.findall(r"^### Changing a running broker\n(.*?)^###", CONFIGURATION, re.MULTILINE | re.DOTALL)
    names = [
        name for cell in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)
    ]
    assert sorted(name for name in names) == sorted(row.name for row in SETTINGS if row.is_live)


def test_the_documents_name_the_settings_without_option() -> None:
    (listed,) = re.findall(r"take settings that are no options: (.*?)\.", CONFIGURATION, re.DOTALL)
    assert re.findall(r"`(\w+)`", listed) == [row.key for row in IN_FILES if not row.option.startswith("--")]
