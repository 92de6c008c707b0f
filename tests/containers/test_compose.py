"""The image and each compose file in a container engine: messages survive a kill and new containers.

``make test-containers`` runs it, with podman and podman-compose or Docker with its compose plugin, whichever works.
``TRIOMQ_BUILD_OPTIONS`` are more options of the engine's ``build``, such as ``--network host``.
"""

import os
import re
import shlex
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.integration.cli_tools import triomq

ROOT: Final = Path(__file__).resolve().parents[2]
IMAGE: Final = "triomq-test"
HOST: Final = "127.0.0.2"  # a broker of this machine may have the ports at 127.0.0.1
NAMESRV: Final = f"{HOST}:9876"
USER: Final = 10911
FILES: Final = sorted(path.name for path in ROOT.glob("docker-compose*.yml"))


@dataclass(frozen=True)
class Engine:
    """A container engine that works here."""

    program: str
    compose: tuple[str, ...]
    build: tuple[str, ...] = ()


ENGINES: Final = (
    Engine("podman", ("podman-compose",), ("--format", "docker")),  # its own format has no health checks
    Engine("docker", ("docker", "compose")),
)


def call(*command: str | Path, check: bool = True, more: Mapping[str, str] | None = None) -> str:
    """Run a program to its end and return its output; fail if it fails."""
    environment = os.environ | (more or {})
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False, cwd=ROOT)
    assert not check or done.returncode == 0, f"{shlex.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


def works(engine: Engine) -> bool:
    commands = ([engine.program, "info"], [*engine.compose, "version"])
    return all(
        shutil.which(command[0])
        and subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
        for command in commands
    )


@pytest.fixture(scope="module")
def engine() -> Engine:
    """An engine that has the image."""
    found = next(filter(works, ENGINES), None)
    if found is None:
        pytest.skip("needs podman with podman-compose, or docker with compose; neither runs on this machine")
    options = shlex.split(os.environ.get("TRIOMQ_BUILD_OPTIONS", ""))
    call(found.program, "build", *found.build, *options, "--tag", IMAGE, ROOT)
    return found


def until_it_succeeds(command: list[str]) -> tuple[str, ...]:
    """Return a command that repeats ``command`` in a container, for a minute."""
    return "sh", "-c", f"for i in $(seq 60); do {shlex.join(command)} && exit; sleep 1; done; exit 1"


@dataclass(frozen=True)
class Project:
    """The containers of a compose file, under a unique project name."""

    engine: Engine
    file: str
    environment: dict[str, str]
    account: tuple[str, ...]  # options of clients

    def compose(self, *words: str) -> str:
        """Run a command of compose."""
        return call(*self.engine.compose, "-p", "triomq-test", "-f", self.file, *words, more=self.environment)

    def services(self) -> dict[str, Any]:
        """The services that start without a profile, with all that they inherit."""
        services: dict[str, Any] = yaml.safe_load((ROOT / self.file).read_text(encoding="utf-8"))["services"]
        return {name: service for name, service in services.items() if "profiles" not in service}

    def up(self) -> None:
        """Start the containers and wait until the health check of each succeeds within it."""
        self.compose("up", "-d", "--no-build")
        for name, service in self.services().items():
            _, *check = service["healthcheck"]["test"]
            self.compose("exec", "-T", name, *until_it_succeeds(check))

    def triomq(self, *words: str) -> str:
        """Run one of our commands outside the containers; return its output."""
        done = triomq(*words, *self.account, namesrv=NAMESRV)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()


@pytest.fixture(params=FILES)
def project(engine: Engine, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    """The project of each compose file; containers and volumes go with the test."""
    account: tuple[str, ...] = ()
    conf = tmp_path / "conf"
    if "secure" in request.param:
        assert triomq("init", "--acl", "--tls", "--host", HOST, str(conf)).returncode == 0
        account = ("--credentials", f"file:{conf}/client/application.account", "--tls-ca", f"{conf}/client/ca.pem")
        mount = f"{conf}/broker:/conf"
        call(engine.program, "run", "--rm", "--user", "0", "-v", mount, IMAGE, "chown", "-R", f"{USER}:{USER}", "/conf")
    addresses = {"TRIOMQ_BIND": HOST, "TRIOMQ_ADVERTISE": HOST, "TRIOMQ_CONF": str(conf / "broker")}
    found = Project(engine, request.param, {**addresses, "TRIOMQ_IMAGE": IMAGE}, account)
    try:
        yield found
    finally:
        found.compose("--profile", "dashboard", "down", "-v")


def containers(engine: Engine) -> list[str]:
    return call(engine.program, "ps", "-q", "--filter", "name=triomq-test").split()


@pytest.mark.timeout(600)
def test_messages_survive_kill_and_new_containers(project: Project) -> None:
    project.up()
    before = containers(project.engine)
    assert len(before) == len(project.services())
    assert "sent 20 messages" in project.triomq("produce", "orders", "--count", "20")
    call(project.engine.program, "kill", "--signal", "KILL", *before)
    project.compose("down")
    project.up()
    assert not set(before) & set(containers(project.engine))
    read = project.triomq("consume", "orders", "--group", "readers", "--count", "20", "--json")
    assert len(set(read.splitlines())) == 20


@pytest.mark.timeout(600)
@pytest.mark.parametrize("project", ["docker-compose.yml"], indirect=True)
def test_dashboard_of_the_profile_shows_the_broker(project: Project) -> None:
    profile = ("--profile", "dashboard")
    project.compose(*profile, "up", "-d", "--no-build")
    deadline = time.monotonic() + 120
    while not (
        found := re.search(r"http://127\.0\.0\.1:8233(/[^\s,]+)", project.compose(*profile, "logs", "dashboard"))
    ):
        assert time.monotonic() < deadline
        time.sleep(1)
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    texts = [browser.open(f"http://127.0.0.1:8233{path}", timeout=30).read() for path in (found[1], "/brokers")]
    assert b"broker-a" in texts[1]


@pytest.mark.timeout(600)
def test_image_by_itself_serves_only_its_own_container(engine: Engine) -> None:
    name = "triomq-test-alone"
    call(engine.program, "run", "--detach", "--name", name, IMAGE)
    try:
        call(engine.program, "exec", name, *until_it_succeeds(["triomq", "ping"]))
        listening = call(engine.program, "exec", name, "cat", "/proc/net/tcp", "/proc/net/tcp6")
        ports = [line.split()[1] for line in listening.splitlines() if line.split()[3] == "0A"]
        assert ports
        assert {port.partition(":")[0] for port in ports} == {"0100007F"}
        assert call(engine.program, "exec", name, "id", "-u").strip() == str(USER)
    finally:
        call(engine.program, "rm", "--force", "--volumes", name)
