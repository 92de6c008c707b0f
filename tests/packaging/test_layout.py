"""What an import loads, and that folders, symlinks and built packages agree."""

import json
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from shutil import copy2, copytree, ignore_patterns
from typing import Final

import pytest

from tests.core import CORE
from tests.integration.test_testing_examples import run_example

ROOT: Final = Path(__file__).resolve().parents[2]
ROOMS: Final = ("broker", "cli", "client", "common", "dashboard", "demo", "protocol", "spark", "storage", "testing")

LOADED_BY: Final = """
import importlib, json, pkgutil, sys
before = set(sys.modules)
left_out = {"triomq.protocol.record.layouts", *sys.argv[1].split(",")}
for name in sys.argv[2:]:
    module = importlib.import_module(name)
    if name != "triomq":
        for found in pkgutil.walk_packages(module.__path__, name + "."):
            if found.name not in left_out and not found.name.endswith("__main__"):
                importlib.import_module(found.name)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def loaded_by(*names: str, left_out: str = "") -> set[str]:
    """The modules that a fresh interpreter has loaded more after importing each name with all it contains."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED_BY, left_out, *names], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def top_level(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


@pytest.mark.parametrize("room", ROOMS)
def test_room_is_a_relative_link(room: str) -> None:
    link = ROOT / "src" / "triomq" / room
    assert link.is_symlink()
    assert link.readlink() == Path("..", "..", room)
    assert (link / "__init__.py").is_file()


def test_every_top_level_package_is_a_known_room() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages - {"bench"} == set(ROOMS)


def test_importing_triomq_loads_nothing_from_elsewhere() -> None:
    loaded = loaded_by("triomq")
    assert {name for name in loaded if name.startswith("triomq")} == {"triomq"}
    assert top_level(loaded) - sys.stdlib_module_names == {"triomq"}


@pytest.mark.parametrize("room", ["protocol", "storage"])
def test_room_without_loop_loads_no_trio_or_socket(room: str) -> None:
    assert not top_level(loaded_by(f"triomq.{room}")) & {"trio", "socket", "asyncio"}


@pytest.mark.parametrize("room", ["broker", "client"])
def test_hot_path_package_imports_no_construct_or_asyncio(room: str) -> None:
    loaded = loaded_by(f"triomq.{room}", left_out="triomq.client.asyncio")  # imported only by users of asyncio
    assert not top_level(loaded) & {"construct", "asyncio"}


def packaged_files() -> set[str]:
    """What a built package has to contain, as paths below ``triomq``."""
    of_rooms = {str(path.relative_to(ROOT)) for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    source = ROOT / "src" / "triomq"
    of_source = {str(path.relative_to(source)) for path in source.rglob("*.py")}  # does not follow the links
    folders = (ROOT / "dashboard" / name for name in ("templates", "static"))
    of_dashboard = {str(path.relative_to(ROOT)) for folder in folders for path in folder.iterdir()}
    return of_rooms | of_source | of_dashboard | {"py.typed", "cli/rocketmq_settings.txt"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sdist and the wheel made from that sdist, built from a clean copy of the tree."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("src", *ROOMS):
        copytree(
            ROOT / name,
            tree / name,
            symlinks=True,
            ignore=ignore_patterns("__pycache__", "*.egg-info", "*.pyc"),
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        copy2(ROOT / name, tree / name)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", tree / "dist", tree],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return tree / "dist"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_wheel_holds_every_room_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    packaged = {name.removeprefix("triomq/") for name in names if name.startswith("triomq/")}
    assert packaged == packaged_files()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"triomq", "pyspark_rocketmq"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_installed_wheel_brings_its_fixtures(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    venv.create(tmp_path / "venv")
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    (site / "others.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")  # its own .pth files do not count
    python = tmp_path / "venv" / "bin" / "python"
    found = (python, "-c", "import triomq; print(triomq.__file__)")
    assert subprocess.check_output(found, text=True, cwd=tmp_path).strip() == str(site / "triomq" / "__init__.py")
    run_example("trio_service", tmp_path, python)


@pytest.mark.timeout(600)
@pytest.mark.jvm
@pytest.mark.spark
@pytest.mark.browser
def test_every_prefix_of_the_core_names_a_test() -> None:
    command = (sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider")
    listed = subprocess.run(
        [*command, "-m", "core", "tests/dashboard", "tests/interop", "tests/spark"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    tests = listed.stdout.splitlines()
    assert [prefix for prefix in CORE if not any(test.startswith(prefix) for test in tests)] == []
