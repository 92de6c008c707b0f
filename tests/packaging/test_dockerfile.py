"""The image, without a container engine: what the Dockerfile says, and its commands in a fresh environment.

The commands run where ``TRIOMQ_DOCKER_CHECK=1`` (``make docker-check``): they install from the package index.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.packaging.dockerfile import ROOT, Instruction, last, read_dockerfile
from tests.processes import Broker, start_broker

ROOMS: Final = ("broker", "client", "protocol", "storage")


def copied_from_the_tree() -> set[str]:
    copies = [item for item in read_dockerfile() if item.name == "COPY" and "--from=" not in item.arguments]
    return {source for item in copies for source in item.words()[:-1]}


def test_image_runs_as_an_unprivileged_user() -> None:
    user, _, group = last("USER").arguments.partition(":")
    assert int(user) > 0
    assert int(group) > 0


def test_every_room_is_copied_and_reaches_the_build() -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied_from_the_tree() == sent
    assert {"src", "pyproject.toml", *ROOMS} <= sent
    assert all((ROOT / name).exists() for name in sent)


@pytest.mark.parametrize("instruction", ["CMD", "HEALTHCHECK"])
def test_command_line_knows_options_of_image(instruction: str) -> None:
    program, command, *words = last(instruction).words()
    assert program == "triomq"
    shown = subprocess.run(
        [sys.executable, "-m", "triomq.cli", command, "--help"], capture_output=True, text=True, timeout=30, check=False
    )
    assert shown.returncode == 0, shown.stderr
    options = {word for word in words if word.startswith("--")}
    assert options <= set(re.findall(r"--[a-z-]+", shown.stdout))


class Sandbox:
    """A folder used as the image's root by all stages, because virtual environments cannot move."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def place(self, text: str) -> str:
        """``text`` with the image's absolute paths moved below the folder."""
        return re.sub(r"(?<![\w./:])/(?=(src|opt|data)\b)", f"{self.root}/", text)

    def environment(self) -> dict[str, str]:
        path = f"{self.root}/opt/triomq/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PATH": path}

    def perform(self, item: Instruction) -> None:
        """Do what ``RUN`` or ``COPY`` says; the others change nothing here."""
        if item.name == "RUN":
            done = subprocess.run(
                ["/bin/sh", "-c", self.place(item.arguments)],
                env=self.environment(),
                cwd=self.root,
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
            assert done.returncode == 0, f"{item.arguments}\n{done.stdout}{done.stderr}"
        elif item.name == "COPY" and item.arguments.startswith("--from="):
            _, source, target = item.words()
            assert source == target, "the environment would not run in another place"
            assert Path(self.place(source)).exists()
        elif item.name == "COPY":
            *sources, target = item.words()
            for source in sources:
                self.copy(ROOT / source, Path(self.place(target)), into=target.endswith("/"))

    def copy(self, source: Path, target: Path, *, into: bool) -> None:
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            target.mkdir(parents=True, exist_ok=True) if into else target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    if os.environ.get("TRIOMQ_DOCKER_CHECK") != "1":
        pytest.skip("installs from the package index: make docker-check runs it")
    if os.geteuid() != 0:
        pytest.skip("the image's commands run as root, as in the build of an image")
    sandbox = Sandbox(tmp_path_factory.mktemp("image"))
    for item in read_dockerfile():
        sandbox.perform(item)
    return sandbox


@pytest.fixture
def container(image: Sandbox, tmp_path: Path) -> Iterator[Broker]:
    """The image's own command, on free loopback ports."""
    command = list(map(image.place, last("CMD").words()))
    command[0] = shutil.which(command[0], path=image.environment()["PATH"]) or command[0]
    free_ports = ("--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0")
    with start_broker([*command, *free_ports, "--json"], tmp_path, environment=image.environment()) as broker:
        yield broker


def health(image: Sandbox, namesrv: str) -> subprocess.CompletedProcess[str]:
    """Do what the container engine does to see whether the container is healthy."""
    command = [namesrv if word == "127.0.0.1:9876" else word for word in last("HEALTHCHECK").words()]
    command[0] = shutil.which(command[0], path=image.environment()["PATH"]) or command[0]
    return subprocess.run(command, env=image.environment(), capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_commands_install_built_package_not_working_tree(image: Sandbox) -> None:
    python = Path(image.place("/opt/triomq/bin/python"))
    script = "import json, lz4, triomq.broker, zstandard; print(json.dumps(triomq.broker.__file__))"
    done = subprocess.run(
        [python, "-c", script],
        env=image.environment(),
        cwd=image.root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(json.loads(done.stdout)).is_relative_to(image.place("/opt/triomq"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_data_folder_belongs_to_image_user(image: Sandbox) -> None:
    user, _, group = last("USER").arguments.partition(":")
    status = Path(image.place("/data")).stat()
    assert (status.st_uid, status.st_gid) == (int(user), int(group))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_container_is_healthy_while_its_command_runs(image: Sandbox, container: Broker) -> None:
    assert container.store == image.place("/data")
    alive = health(image, container.namesrv)
    assert alive.returncode == 0, alive.stderr
    container.stop()
    assert health(image, container.namesrv).returncode != 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_dashboard_of_the_image_serves(image: Sandbox, container: Broker) -> None:
    words = ("--json", "--listen", "127.0.0.1:0", "--namesrv", container.namesrv)
    command = (image.place("/opt/triomq/bin/triomq"), "dashboard", *words)
    with subprocess.Popen(command, env=image.environment(), cwd=image.root, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            link = json.loads(process.stdout.readline())["dashboard"]
            with urllib.request.urlopen(link, timeout=30) as page:
                assert page.status == 200
        finally:
            process.terminate()
