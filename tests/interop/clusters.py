"""Clusters of two brokers, ours and Apache's, at our name server and at Apache's."""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tests.interop.kit_driver import ApacheBroker, ApacheBrokers
from tests.processes import start_member, start_name_server
from triomq.client.sync import Admin

QUICK_CHECKS: Final = ("--transaction-timeout", "2", "--transaction-check-interval", "2")
"""Options of a broker that asks about undecided transactions soon."""

OURS: Final = "triomq"
NAMES: Final = ("broker-a", "broker-b")
REGISTRATION_LIMIT_S: Final = 30
CLUSTERS: Final[Mapping[str, tuple[str, str]]] = {
    "two-triomq": (OURS, OURS),
    "mixed-at-triomq": (OURS, "4.9.7"),
    "mixed-at-apache": (OURS, "4.9.7"),
    "two-apache": ("4.9.7", "4.9.7"),
    "mixed-5": (OURS, "5.5.0"),
}
"""What broker-a and broker-b are; they register with our name server, and with one of Apache's if there is one."""


def is_ours(place: str, broker_name: str) -> bool:
    """Whether a broker is ours: of a cluster, or the only one at a place."""
    first, second = CLUSTERS.get(place, (place, place))
    return (second if broker_name == "broker-b" else first) == OURS


@contextmanager
def cluster(kind: str, folder: Path, apache: ApacheBrokers) -> Iterator[tuple[str, list[str]]]:
    """Run a cluster; return the name server to use, and all that know it."""
    with ExitStack() as stack:
        name_servers = [stack.enter_context(start_name_server(folder / "namesrv")).namesrv]
        waiting = []
        for name, broker in zip(NAMES, CLUSTERS[kind], strict=True):
            if broker == OURS:
                waiting.append(name)
                continue
            place = folder / name
            stack.callback(apache.stop, place)
            started: ApacheBroker = apache.start(broker, place, {"brokerName": name}, join=name_servers[0])
            name_servers.append(started.namesrv)
        if kind == "two-apache":  # each knows one that the other does not
            del name_servers[1:]
        for name in waiting:
            stack.enter_context(start_member(folder / name, name, ";".join(name_servers), *QUICK_CHECKS))
        for name_server in name_servers:
            _wait_for_both(name_server)
        yield name_servers[-1] if kind == "mixed-at-apache" else name_servers[0], name_servers


def _wait_for_both(name_server: str) -> None:
    """Wait until both brokers are registered; Apache's, if its first attempt fails, tries again after 10 s."""
    deadline = time.monotonic() + REGISTRATION_LIMIT_S
    with Admin(namesrv=name_server) as admin:
        while (names := admin.cluster().broker_addr_table.keys()) != set(NAMES):
            assert time.monotonic() < deadline, f"the name server {name_server} knows only {sorted(names)}"
            time.sleep(0.05)
