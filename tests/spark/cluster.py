"""A Spark standalone cluster on loopback: a master and workers as processes, with a Python that has no triomq."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from triomq.spark.archive import dependencies

READY_S: Final = 90
STOP_S: Final = 20
MEMORY: Final = "512m"
#: What PySpark needs for Arrow; of the tests' own interpreter.
_ARROW_PACKAGES: Final = ("pyarrow", "numpy", "pandas", "dateutil", "pytz", "six", "tzdata")
#: What every node has.
_NODE_PACKAGES: Final = ("pyspark", "py4j", *_ARROW_PACKAGES)


def spark_home() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def make_node_python(folder: Path) -> Path:
    """Make an interpreter with PySpark and its dependencies only; return its path."""
    packages = _make_environment(folder)
    for source in _installed(_NODE_PACKAGES):
        (packages / source.name).symlink_to(source)
    return folder / "bin" / "python"


def make_packed_environment(folder: Path) -> Path:
    """Make a virtual environment with triomq and its dependencies, without PySpark, as documented; return its tar.

    It gets copies of the packages installed here, in place of ``pip install``, and as few as possible.
    """
    packages = _make_environment(folder / "environment")
    leave_out = shutil.ignore_patterns("__pycache__", "tests", "include", "*.pyx", "*.pxd")
    for source in (*_installed(_ARROW_PACKAGES), *_installed(("triomq",))):
        if source.is_dir():
            shutil.copytree(source, packages / source.name, ignore=leave_out)  # the rooms are links in a checkout
        else:
            shutil.copy(source, packages)
    for name in dependencies():
        for file in importlib.metadata.files(name) or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), packages / file)
    packed = folder / "environment.tar.gz"
    command = ["tar", "--use-compress-program=gzip -1", "-cf", str(packed), "-C", str(folder / "environment"), "."]
    subprocess.run(command, check=True, timeout=READY_S)
    return packed


def _make_environment(folder: Path) -> Path:
    """Make an empty virtual environment; return where its packages go."""
    venv.create(folder, with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return folder / "lib" / version / "site-packages"


def _installed(names: Sequence[str]) -> Iterator[Path]:
    """Yield the folders or files of packages, and of the shared libraries of their wheels."""
    for name in names:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            continue
        source = Path(spec.origin)
        source = source.parent if source.name == "__init__.py" else source
        yield source
        libraries = source.with_name(f"{source.name}.libs")
        if libraries.is_dir():
            yield libraries


@dataclass(kw_only=True)
class Cluster:
    """A running cluster."""

    master: str
    python: Path
    folder: Path
    environment: Mapping[str, str]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def command(self, job: Path, *arguments: str, settings: Mapping[str, str] | None = None) -> list[str]:
        """Return the command line that submits a job."""
        words = [str(spark_home() / "bin" / "spark-submit"), "--master", self.master]
        common = {
            "spark.executor.memory": MEMORY,
            "spark.executor.extraJavaOptions": self.environment["SPARK_SUBMIT_OPTS"],
        }
        for name, value in {**common, **(settings or {})}.items():
            words += ["--conf", f"{name}={value}"]
        return [*words, str(job), *arguments]

    def executors(self) -> list[int]:
        """Process ids of the executors that run now."""
        return [child for worker in self.workers for child in _children(worker.pid)]


@contextmanager
def open_cluster(folder: Path, workers: int) -> Iterator[Cluster]:
    """Start master and workers, each with one core; end them by their ids."""
    python = make_node_python(folder / "node")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK"))}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(python), "SPARK_HOME": str(spark_home())}
    quick = os.environ["SPARK_SUBMIT_OPTS"]
    environment |= {"SPARK_SUBMIT_OPTS": quick, "SPARK_DAEMON_JAVA_OPTS": quick}
    with ExitStack() as stack:
        master, found = stack.enter_context(
            _daemon(
                folder / "master.log",
                ("master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
                r"Starting Spark master at (spark://\S+)",
                environment,
            )
        )
        assert master.poll() is None
        cluster = Cluster(master=found, python=python, folder=folder, environment=environment)
        for number in range(workers):
            words = ("--host", "127.0.0.1", "--cores", "1", "--memory", MEMORY, "--webui-port", "0")
            work = ("--work-dir", str(folder / f"work-{number}"), cluster.master)
            worker, _ = stack.enter_context(
                _daemon(
                    folder / f"worker-{number}.log",
                    ("worker.Worker", *words, *work),
                    r"Successfully registered with master (\S+)",
                    environment,
                )
            )
            cluster.workers.append(worker)
        yield cluster


@contextmanager
def _daemon(
    log: Path, arguments: Sequence[str], ready: str, environment: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start a daemon of Spark; yield it and the address in its ready line."""
    command = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{arguments[0]}", *arguments[1:]]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=dict(environment)
        )
    try:
        deadline = time.monotonic() + READY_S
        while (found := re.search(ready, log.read_text(errors="replace"))) is None:
            assert process.poll() is None, log.read_text(errors="replace")[-2000:]
            assert time.monotonic() < deadline, log.read_text(errors="replace")[-2000:]
            time.sleep(0.1)
        yield process, found[1]
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _children(pid: int) -> list[int]:
    return [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]
