"""Our broker and Apache's in turns under the same load: Apache's own Java client, from the interop kit.

Both brokers run all the time; only one is under load.  Ratios are of medians; above 1, triomq is better.  Throughput
varies by a third on a machine that the load shares, a broker's CPU for each message by a tenth: it comes first.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.processes import KIT, Server, apache_server, triomq_server, work_folder
from bench.report import print_table, write_json
from tests.interop.kit_driver import java_classpath


class Load(NamedTuple):
    """One call of the load generator, and the ratio that triomq should reach."""

    name: str
    arguments: tuple[str, ...]
    metric: str
    higher_is_better: bool
    bar: float


_RATE: Final = "msgs_per_s"
_TRANSACTIONS: Final = Path(__file__).parent / "Transactions.java"
_SETTLE_STEP_S: Final = 0.5
_SETTLE_LIMIT_S: Final = 20.0
_IDLE_SHARE: Final = 0.1  # of one core


def _produce(text: str, options: str, bar: float) -> Load:
    return Load(f"produce {text}", ("produce", *options.split()), _RATE, True, bar)


#: By durability.
LOADS: Final[Mapping[str, tuple[Load, ...]]] = {
    "async": (
        _produce("128 B, 64 threads", "--size 128 --threads 64", 1.6),
        _produce("1 KiB, 64 threads", "--size 1024 --threads 64", 1.5),
        _produce("1 KiB, 1 thread", "--size 1024 --threads 1", 1.4),
        _produce("128 B, async 1000", "--size 128 --async --inflight 1000", 1.3),
        Load("transactions, 64 threads", ("transactions", "64"), _RATE, True, 1.3),
        Load("consume a 1 KiB backlog", ("consume", "--size", "1024"), _RATE, True, 1.4),
        Load("end to end at 1000/s", ("e2e", "--rate", "1000", "--size", "1024"), "p50_ms", False, 2.0),
    ),
    "sync": (
        _produce("1 KiB, 64 threads", "--size 1024 --threads 64", 1.7),
        _produce("1 KiB, 1 thread", "--size 1024 --threads 1", 1.15),
    ),
}
#: With TLS on both sides.
_TLS_LOADS: Final = (_produce("1 KiB, 64 threads", "--size 1024 --threads 64", 1.3),)
_APACHE_SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {"async": {}, "sync": {"flushDiskType": "SYNC_FLUSH"}}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``python -m bench compare``."""
    parser.add_argument("--turns", type=int, default=5, help="turns of each load on each broker (default 5)")
    parser.add_argument("--warmup", type=int, default=5, help="seconds of each turn that do not count (default 5)")
    parser.add_argument("--seconds", type=int, default=10, help="seconds of each turn that count (default 10)")
    parser.add_argument("--count", type=int, default=400_000, help="backlog of the consume load (default 400000)")
    parser.add_argument("--apache", default="4.9.7", help="version of the Apache broker (default 4.9.7)")
    parser.add_argument("--client", default="4.9", help="version of the Java client (default 4.9)")
    parser.add_argument("--durability", choices=LOADS, default="async", help="of both brokers (default async)")
    parser.add_argument("--tls", action="store_true", help="over TLS, the server's certificate is checked")
    parser.add_argument("--only", default="", help="only loads whose name holds this text")
    parser.add_argument("--json", metavar="FILE", help="write every figure to FILE")


def run(options: argparse.Namespace) -> int:
    """Run all loads and print a table; returns the exit code."""
    known = _TLS_LOADS if options.tls else LOADS[options.durability]
    loads = [load for load in known if options.only in load.name]
    if not loads:
        print(f"no load matches {options.only!r}: {', '.join(load.name for load in known)}", file=sys.stderr)
        return 2
    results: list[dict[str, Any]] = []
    with work_folder() as folder, ExitStack() as stack:
        (folder / "apache").mkdir()
        secured = stack.enter_context(_tls(folder / "tls")) if options.tls else ()
        servers = (
            stack.enter_context(triomq_server(folder / "triomq", *secured, durability=options.durability)),
            stack.enter_context(apache_server(folder / "apache", options.apache, _APACHE_SETTINGS[options.durability])),
        )
        time.sleep(5)  # both are idle now: their memory counts
        start = [
            {"server": server.name, "ready_s": server.ready_s, "idle_mib": server.memory_mib()} for server in servers
        ]
        for load in loads:
            for turn in range(options.turns):
                results += (_turn(server, load, turn, options) for server in servers)
    report = {"start": start, "turns": results, "loads": [_summary(load, results, servers) for load in loads]}
    _print(report)
    if options.json:
        write_json(options.json, report)
    return 0


@contextmanager
def _tls(folder: Path) -> Iterator[tuple[str, ...]]:
    """Let all Java programs use TLS, Apache's broker and name server too; yields the options of our broker."""
    from tests.certificates import Authority, java_settings  # needs trustme

    authority = Authority(folder)
    files = authority.issue("server")
    settings = {
        "tls.test.mode.enable": "false",
        "tls.server.certPath": files.cert,
        "tls.server.keyPath": files.key,
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": authority.ca,
    }
    before = dict(os.environ)
    os.environ["JAVA_TOOL_OPTIONS"] = f"-Dtls.enable=true {java_settings(folder, settings)}"
    try:
        yield "--tls", "enforcing", "--tls-cert", str(files.cert), "--tls-key", str(files.key)
    finally:
        os.environ.clear()
        os.environ.update(before)


def _turn(server: Server, load: Load, turn: int, options: argparse.Namespace) -> dict[str, Any]:
    arguments = ["--namesrv", server.namesrv]
    if load.arguments[0] == "consume":
        arguments += ["--count", str(options.count)]
    else:
        arguments += ["--warmup", str(options.warmup), "--seconds", str(options.seconds)]
    cpu_s = server.cpu_s()
    command = [str(KIT / "run.sh"), "--client", options.client, "bench", *load.arguments, *arguments]
    if load.arguments[0] == "transactions":
        times = str(options.warmup), str(options.seconds)
        classpath = java_classpath("4.9.7")
        command = ["java", "-cp", classpath, str(_TRANSACTIONS), server.namesrv, *load.arguments[1:], *times]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    # Java's clients may log to stdout, too.
    figures: dict[str, Any] = json.loads([line for line in output.splitlines() if line.startswith("{")][-1])
    _settle(server)  # deferred work must not disturb the other broker's turn
    figures |= {"server": server.name, "load": load.name, "turn": turn}
    figures["broker_cpu_us"] = (server.cpu_s() - cpu_s) / _messages(load, figures, options) * 1e6
    figures |= {"rss_mib": server.memory_mib(), "anonymous_mib": server.anonymous_mib()}
    print(f"{load.name:28} {server.name:14} turn {turn + 1}: {figures[load.metric]}", file=sys.stderr, flush=True)
    return figures


def _messages(load: Load, figures: Mapping[str, Any], options: argparse.Namespace) -> float:
    """Return for how many messages a turn's CPU was; a warm-up counts at the rate of the time after it."""
    if load.arguments[0] == "consume":
        return float(options.count)
    rate = float(load.arguments[load.arguments.index("--rate") + 1] if load.arguments[0] == "e2e" else figures[_RATE])
    return rate * float(options.warmup + options.seconds)


def _settle(server: Server) -> None:
    """Wait until a server has nothing left to do."""
    deadline = time.monotonic() + _SETTLE_LIMIT_S
    while time.monotonic() < deadline:
        cpu_s = server.cpu_s()
        time.sleep(_SETTLE_STEP_S)
        if server.cpu_s() - cpu_s < _IDLE_SHARE * _SETTLE_STEP_S:
            return


def _summary(load: Load, results: list[dict[str, Any]], servers: tuple[Server, ...]) -> dict[str, Any]:
    ours, theirs = (
        [figures for figures in results if figures["load"] == load.name and figures["server"] == server.name]
        for server in servers
    )
    mine, other = _median(ours, load.metric), _median(theirs, load.metric)
    ratio = mine / other if load.higher_is_better else other / mine
    summary: dict[str, Any] = {
        "load": load.name,
        "metric": load.metric,
        "ratio": ratio,
        "bar": load.bar,
    }
    for name, figures in (("ours", ours), ("apache", theirs)):
        for metric in (load.metric, "p50_ms", "p99_ms", "broker_cpu_us", "anonymous_mib"):
            summary[f"{name}_{metric}"] = _median(figures, metric)
    return summary


def _median(turns: list[dict[str, Any]], metric: str) -> float:
    values = [float(turn[metric]) for turn in turns if turn.get(metric) is not None]
    return statistics.median(values) if values else float("nan")


def _print(report: dict[str, Any]) -> None:
    rows = [
        [
            each["load"],
            f"{each['ours_broker_cpu_us']:.1f} / {each['apache_broker_cpu_us']:.1f}",
            f"{each['ours_' + each['metric']]:,.2f}",
            f"{each['apache_' + each['metric']]:,.2f}",
            f"{each['ratio']:.2f}",
            f"{each['bar']}",
            f"{each['ours_p50_ms']:.2f} / {each['apache_p50_ms']:.2f}",
            f"{each['ours_p99_ms']:.2f} / {each['apache_p99_ms']:.2f}",
        ]
        for each in report["loads"]
    ]
    head = ["load", "broker CPU us/message", "triomq", "Apache", "ratio", "bar", "p50 ms", "p99 ms"]
    print_table("Medians; pairs are triomq / Apache", head, rows)
    rows = [[each["server"], f"{each['ready_s']:.2f} s", f"{each['idle_mib']:.0f} MiB"] for each in report["start"]]
    print_table("Start and idle memory (broker with name server)", ["server", "ready", "resident"], rows)
