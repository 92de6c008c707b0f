"""Every command of Apache's ``mqadmin`` 4.9.7 and 5.5.0 at our broker; ``docs/mqadmin.md`` lists the verdicts."""

import json
import re
import subprocess
from base64 import b64decode
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import trio

from tests.integration import test_name_server
from tests.integration.broker_wire import connected
from tests.interop.kit_driver import apache_classpath
from tests.interop.suite_tools import Inbox, fresh, new_topic, push_consumer
from tests.processes import Broker, start_triomq
from triomq.client import ClientInstance, Message, Producer
from triomq.protocol.acl.accounts import DENY, PUB, SUB, Account
from triomq.protocol.acl.plain_acl import read_rules
from triomq.protocol.requests.catalogue import CATALOGUE

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

PROGRAM: Final = Path(__file__).parent / "Mqadmin.java"
PAGE: Final = Path(__file__).parents[2] / "docs" / "mqadmin.md"
LIMIT_MS: Final = 30_000
RUN_TIMEOUT_S: Final = 400


class Command(NamedTuple):
    """A command as it is run.

    Attributes:
        line: its words; names in braces are filled in.
        says: what its output holds, and only if it works, or is refused.
        refused: for a command that does not work: why.
        limit_ms: when the output is looked at; for commands that never end.
    """

    line: str
    says: str
    refused: str = ""
    limit_ms: int = LIMIT_MS


_ENDLESS_MS: Final = 6000
COMMANDS: Final = (
    Command("updateTopic -b {broker} -t {other} -r 2 -w 2", "create topic to {broker} success"),
    Command("updateTopicPerm -c {cluster} -t {other} -p 4", "update topic perm from"),
    Command("topicList", "{other}"),
    Command("topicRoute -t {topic}", "{broker}"),
    Command("topicStatus -t {topic}", "{name}"),
    Command("topicClusterList -t {topic}", "{cluster}"),
    Command("updateSubGroup -b {broker} -g {other}", "success"),
    Command("getConsumerConfig -g {other}", "{other}"),
    Command("updateBrokerConfig -b {broker} -k transactionCheckMax -v 20", "success"),
    Command("getBrokerConfig -b {broker}", "transactionCheckMax"),
    Command("brokerStatus -b {broker}", "putTps"),
    Command("brokerConsumeStats -b {broker}", "{topic}"),
    Command("clusterList", "{broker}"),
    Command("clusterList -m", "{cluster}"),
    Command("queryMsgByKey -t {topic} -k key-0", "{unique_id}"),
    Command("queryMsgByUniqueKey -t {topic} -i {unique_id}", "KEYS=key-0"),
    Command("queryMsgByOffset -t {topic} -b {name} -i {queue_id} -o {offset}", "{unique_id}"),
    Command("queryMsgTraceById -i {unique_id}", "{producers}"),
    Command("printMsg -t {topic}", "{unique_id}"),
    Command("printMsgByQueue -t {topic} -a {name} -i {queue_id} -p true -d true", "{unique_id}"),
    Command("queryCq -b {broker} -t {topic} -q {queue_id} -i 0 -c 5", "physicOffset"),
    Command("sendMessage -t {topic} -p text", "SEND_OK"),
    Command("sendMsgStatus -b {name} -c 2", "SEND_OK"),
    Command("checkMsgSendRT -t {topic} -a 3", "Avg RT"),
    Command("consumeMessage -t {topic} -c 1", "MSGID"),
    Command("producer -b {broker}", "{producers}"),
    Command("producerConnection -g {producers} -t {topic}", "{client_id}"),
    Command("consumerConnection -g {group}", "{topic}"),
    Command("consumerProgress -g {group}", "{topic}"),
    Command("consumerStatus -g {group}", "Rebalance OK"),
    Command("cloneGroupOffset -s {group} -d {other} -t {topic} -o true", "success"),
    Command("resetOffsetByTime -g {other} -t {topic} -s now", "{name}"),
    Command("skipAccumulatedMessage -g {other} -t {topic}", "{name}"),
    Command("statsAll -t {topic}", "{group}"),
    Command("allocateMQ -t {topic} -i 10.0.0.1,10.0.0.2", "10.0.0.2"),
    Command("updateKvConfig -s space -k name -v value", "create or update kv config to namespace success"),
    Command("deleteKvConfig -s space -k name", "delete kv config from namespace success"),
    Command("updateOrderConf -t {topic} -m put -v {name}:4", "success"),
    Command("updateOrderConf -t {topic} -m get", "{name}:4"),
    Command("updateOrderConf -t {topic} -m delete", "success"),
    Command("wipeWritePerm -b {name}", "wipe write perm of broker[{name}]"),
    Command("addWritePerm -b {name}", "add write perm of broker[{name}]"),
    Command("getNamesrvConfig", "orderMessageEnable"),
    Command("updateNamesrvConfig -k orderMessageEnable -v false", "update name server config success"),
    Command("cleanExpiredCQ -b {broker}", "success"),
    Command("deleteExpiredCommitLog -b {broker}", "success"),
    Command("cleanUnusedTopic -b {broker}", "success"),
    Command("exportMetadata -c {cluster} -f {folder}", "export"),
    Command("exportConfigs -c {cluster} -f {folder}", "export"),
    Command("exportMetrics -c {cluster} -f {folder}", "export"),
    Command("deleteSubGroup -b {broker} -g {other}", "success"),
    Command("deleteTopic -c {cluster} -t {other}", "success"),
    Command("clusterRT -c {cluster} -a 2 -i 1", "{name}", limit_ms=_ENDLESS_MS),
    Command("startMonitoring", "", limit_ms=_ENDLESS_MS),
)

_ONLY_4: Final = (Command("queryMsgById -i {offset_id}", "{unique_id}"),)
_COMPACTION: Final = "it reads a local file of a compacted topic; there are none"
_LOCAL_ROCKSDB: Final = "it reads local files of RocksDB; there are none"


def _reason(code: int) -> str:
    return CATALOGUE[code].refused


def _refused(line: str, code: int) -> Command:
    return Command(line, f"request type {code} not supported: {_reason(code)}", _reason(code))


def _failing(line: str, code: int) -> Command:
    """A command that shows no reason when a broker refuses its request."""
    return Command(line, "error", _reason(code))


_ONLY_5: Final = (
    Command("queryMsgById -t {topic} -i {offset_id}", "{unique_id}"),
    Command("updateTopicList -b {broker} -f {topics_file}", "success"),
    Command("updateSubGroupList -b {broker} -f {groups_file}", "success"),
    _refused("setConsumeMode -b {broker} -t {topic} -g {other} -m POP", 401),
    _refused("addBroker -c {broker} -b conf", 902),
    _refused("removeBroker -c {broker} -b DefaultCluster:broker-a:0", 903),
    _refused("resetMasterFlushOffset -b {broker} -o 0", 908),
    _refused("updateStaticTopic -b {name} -t {other} -qn 2", 513),
    Command("remappingStaticTopic -b {name} -t {topic}", "Mapping info should not be null", _reason(513)),
    Command("exportMetadataInRocksDB -p {folder} -t topics", "RocksDB load error", _LOCAL_ROCKSDB),
    _refused("exportPopRecord -b {broker}", 200_056),
    Command("haStatus -b {broker}", "{broker}"),
    _refused("getSyncStateSet -a {broker} -b {name}", 1005),
    _refused("getBrokerEpoch -b {name}", 1007),
    _refused("getControllerMetaData -a {broker}", 1005),
    _refused("getControllerConfig -a {broker}", 1010),
    _refused("updateControllerConfig -a {broker} -k name -v value", 1009),
    _refused("electMaster -a {broker} -b 0 -bn {name} -c {cluster}", 1005),
    _refused("cleanBrokerMetadata -a {broker} -bn {name} -c {cluster}", 1005),
    Command("dumpCompactionLog -f {folder}/none", "not exist", _COMPACTION),
    _refused("getColdDataFlowCtrInfo -b {broker}", 2003),
    _refused("updateColdDataFlowCtrGroupConfig -b {broker} -g {group} -v 1", 2001),
    _refused("removeColdDataFlowCtrGroupConfig -b {broker} -g {group}", 2002),
    _refused("setCommitLogReadAheadMode -b {broker} -m 0", 2004),
    _refused("rocksDBConfigToJson -c {cluster}", 355),
    _refused("checkRocksdbCqWriteProgress -c {cluster}", 354),
    _refused("switchTimerEngine -b {broker} -e F", 5001),
    _refused("getBrokerLiteInfo -b {broker}", 200_074),
    _failing("getParentTopicInfo -p {topic}", 200_075),
    _failing("getLiteTopicInfo -p {topic} -l name", 200_076),
    _failing("getLiteClientInfo -p {topic} -g {group} -c {client_id}", 200_077),
    _failing("getLiteGroupInfo -p {topic} -g {group}", 200_078),
    _failing("triggerLiteDispatch -p {topic} -g {group}", 200_079),
)
#: The commands of each version; each one is run in this order.
VERSIONS: Final = {"4.9.7": _ONLY_4 + COMMANDS, "5.5.0": _ONLY_5 + COMMANDS}

#: Commands that a broker serves with accounts only, by version; ``copy`` is another one with accounts.
WITH_ACCOUNTS: Final = {
    "4.9.7": (
        Command("updateAclConfig -b {broker} -a {user} -s {secret} -t a=PUB", "success"),
        Command("updateGlobalWhiteAddr -b {broker} -g 10.0.0.1", "success"),
        Command("clusterAclConfigVersion -b {broker}", "plain_acl.yml"),
        Command("getAclConfig -b {broker}", "{user}"),
        Command("deleteAclConfig -b {broker} -a {user}", "success"),
    ),
    "5.5.0": (
        Command("createUser -b {broker} -u {user} -p {secret}", "create user to {broker} success"),
        Command("createUser -b {broker} -u {user} -p {secret}", "exists already", "it exists"),
        Command("updateUser -b {broker} -u {user} -s disable", "userStatus disable has no equivalent", "disabled"),
        Command("updateUser -b {broker} -u {user} -t Super", "update user to {broker} success"),
        Command("updateUser -b {broker} -u {user} -t Normal", "update user to {broker} success"),
        Command("getUser -b {broker} -u {user}", "Normal"),
        Command("listUser -b {broker}", "Super"),
        Command("copyUser -f {broker} -t {copy} -u {user}", "password is missing", "it is new there"),
        Command("createUser -b {copy} -u {user} -p {secret}", "create user to {copy} success"),
        Command("copyUser -f {broker} -t {copy}", "copy user of {user} from {broker} to {copy} success"),
        Command("createAcl -b {broker} -s User:{user} -r Topic:a -a All -d Allow", "action All has no", "All"),
        Command(
            "createAcl -b {broker} -s User:{user} -r Topic:a -a Pub -d Allow -i 10.0.0.1", "sourceIps", "sourceIps"
        ),
        Command(
            "createAcl -b {broker} -s User:{user} -r Topic:a,Group:g -a Pub,Sub -d Allow", "create acl to {broker}"
        ),
        Command("updateAcl -b {broker} -s User:{user} -r Topic:b -a All -d Deny", "update acl to {broker} success"),
        Command("deleteAcl -b {broker} -s User:{user} -r Group:g", "delete acl to {broker} success"),
        Command("getAcl -b {broker} -s User:{user}", "Topic:b"),
        Command("copyAcl -f {broker} -t {copy}", "copy acl of User:{user} from {broker} to {copy} success"),
        Command("listAcl -b {copy}", "Topic:a"),
        Command("deleteAcl -b {broker} -s User:{user}", "delete acl to {broker} success"),
        Command("deleteUser -b {broker} -u {user}", "delete user to {broker} success"),
    ),
}
OPERATOR: Final = "{accessKey: operator, secretKey: secret-of-operator%s}"


def run(version: str, commands: Sequence[Command], names: dict[str, str], home: Path) -> list[str]:
    """Run the commands in one process; return the list of all commands, and the output of each one."""
    (home / "conf").mkdir(exist_ok=True)
    silent = home / "conf" / "logback_tools.xml"
    silent.write_text('<configuration><root level="OFF"/></configuration>')
    lines = [f"{LIMIT_MS}\t"]  # without words it lists its commands
    for each in commands:
        words = [word.format_map(names) for word in each.line.split(" ")]
        lines.append("\t".join((str(each.limit_ms), *words, "-n", names["namesrv"])))
    homes = tuple(f"-D{name}={home}" for name in ("rocketmq.home.dir", "user.home", "java.io.tmpdir"))
    options = (*homes, f"-Drmq.logback.configurationFile={silent}", "-cp", apache_classpath(version))
    done = subprocess.run(
        ["java", *options, str(PROGRAM)],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        cwd=home,  # consumerStatus writes files there
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [b64decode(line).decode() for line in done.stdout.splitlines()]


def write_list(path: Path, configs: list[dict[str, str]]) -> str:
    """Write a list of topics or groups as mqadmin 5 reads it; return its path."""
    path.write_text(json.dumps(configs))
    return str(path)


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_command_works_or_says_why_not(version: str, triomq_broker: Broker, tmp_path: Path) -> None:
    namesrv = triomq_broker.namesrv
    async with connected(int(namesrv.rpartition(":")[2])) as wire:  # the cluster's body names it, and who shares a name
        await test_name_server.register(wire, brokerName="left")
        await test_name_server.register(wire, brokerName="broker-a")
    async with ClientInstance(namesrv) as instance:
        info = await instance.routes.cluster()
        assert info.missing_brokers
        assert info.name_conflicts
    topic, group, producers = await new_topic(namesrv, queues=1), fresh("G"), fresh("P")
    inbox = Inbox()
    async with (
        push_consumer(namesrv, topic, inbox.take, group=group),
        Producer(producers, namesrv=namesrv, trace=True) as producer,
    ):
        sent = [await producer.send(Message(topic, b"text", keys=(f"key-{number}",))) for number in range(3)]
        await inbox.wait_count(3)
        names = {
            "namesrv": namesrv,
            "broker": triomq_broker.broker,
            "cluster": "DefaultCluster",
            "name": "broker-a",
            "topic": topic,
            "other": fresh("other"),
            "group": group,
            "producers": producers,
            "client_id": "@",
            "offset_id": str(sent[0].offset_message_id),
            "unique_id": sent[0].message_id,
            "queue_id": str(sent[0].queue.queue_id),
            "offset": str(sent[0].queue_offset),
            "folder": str(tmp_path),
            "topics_file": write_list(tmp_path / "topics.json", [{"topicName": fresh("listed")}]),
            "groups_file": write_list(tmp_path / "groups.json", [{"groupName": fresh("listed")}]),
        }
        outputs = await trio.to_thread.run_sync(partial(run, version, VERSIONS[version], names, tmp_path))
    listed = re.findall(r"^ {3}(\w+)", outputs.pop(0), re.MULTILINE)
    verdicts = {
        each.line.partition(" ")[0]: f"refused: {each.refused}" if each.refused else "works"
        for each in VERSIONS[version]
    }
    verdicts |= dict.fromkeys((each.line.partition(" ")[0] for each in WITH_ACCOUNTS[version]), "works with `--acl`")
    table = f"| command | {version} |\n| --- | --- |\n" + "".join(
        f"| `{name}` | {verdicts[name]} |\n" for name in listed
    )
    assert table in PAGE.read_text(encoding="utf-8"), table
    assert_expected(VERSIONS[version], outputs, names)


@pytest.mark.parametrize("version", VERSIONS)
def test_commands_about_accounts_work_or_say_why_not(version: str, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "tools.yml").write_text(OPERATOR % "")
    files = [tmp_path / name / "plain_acl.yml" for name in ("one", "other")]
    for file in files:
        file.parent.mkdir()
        file.write_text(f"accounts: [{OPERATOR % ', admin: true'}]")
    with ExitStack() as stack:
        broker, other = (stack.enter_context(start_triomq(file.parent, "--acl", str(file))) for file in files)
        names = {
            "namesrv": broker.namesrv,
            "broker": broker.broker,
            "copy": other.broker,
            "user": "rocket-user",
            "secret": "rocket-secret",
        }
        _, *outputs = run(version, WITH_ACCOUNTS[version], names, tmp_path)
    assert_expected(WITH_ACCOUNTS[version], outputs, names)
    assert not [output for output in outputs if "rocket-secret" in output]
    assert list(read_rules(files[0].read_text()).accounts) == ["operator"]
    if version == "5.5.0":
        copied = read_rules(files[1].read_text()).accounts["rocket-user"]
        assert copied == Account("rocket-user", "rocket-secret", rights={"a": PUB | SUB, "b": DENY})


def assert_expected(commands: Sequence[Command], outputs: Sequence[str], names: dict[str, str]) -> None:
    unexpected = [
        f"{each.line}\n{output}"
        for each, output in zip(commands, outputs, strict=True)
        if each.says.format_map(names) not in output or ("Exception" in output and not each.refused)
    ]
    assert not unexpected, "\n".join(unexpected)
