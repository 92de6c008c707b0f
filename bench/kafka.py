"""Apache Kafka as a peer: its jars from Maven, and a broker of them on loopback, in KRaft mode."""

import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from bench.processes import ROOT, free_port, listening_server

#: The newest of the line that Spark's connector takes its client from.
VERSION: Final = "3.9.1"
_POMS: Final = ROOT / "bench" / "kafka_jars"
_FETCH_LIMIT_S: Final = 600
_SETTINGS: Final = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/data
num.partitions={partitions}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
"""


class JarsMissingError(Exception):
    """Jars cannot be fetched; the message names them and the reason."""


class Connector(NamedTuple):
    """Versions of Spark's Kafka connector: its own, and that of the part of it that is released beside it."""

    version: str
    token_version: str


#: Runs on Spark 4.3 as well, for registries where the connector of the installed PySpark is not.
OLDER_CONNECTOR: Final = Connector("4.2.0", "4.0.0")


def fetch_server(cache: Path) -> Path:
    """Return the folder of the broker's jars, filled by Maven if missing.

    Raises:
        JarsMissingError: Maven is not installed, or cannot bring them.
    """
    return _fetch("server", cache / f"kafka-{VERSION}")


def fetch_connector(cache: Path, spark_version: str) -> tuple[Connector, Path]:
    """Return the connector for a version of Spark, else an older one that runs on it, and the folder of its jars.

    Raises:
        JarsMissingError: as :func:`fetch_server`.
    """
    same = Connector(spark_version, spark_version)
    try:
        return same, _fetch_connector(cache, same)
    except JarsMissingError as exc:
        try:
            return OLDER_CONNECTOR, _fetch_connector(cache, OLDER_CONNECTOR)
        except JarsMissingError as older:
            raise older from exc


def _fetch_connector(cache: Path, wanted: Connector) -> Path:
    folder = cache / f"connector-{wanted.version}-{wanted.token_version}"
    return _fetch("connector", folder, f"connector.version={wanted.version}", f"token.version={wanted.token_version}")


def _fetch(pom: str, folder: Path, *settings: str) -> Path:
    if folder.is_dir():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise JarsMissingError(
            f"{folder.name}: Maven (mvn) is not on the path, and its jars are not in {folder.parent}"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    defines = [f"-D{setting}" for setting in (f"kafka.version={VERSION}", *settings)]
    command = [maven, "-q", "-B", "-Dstyle.color=never", "-f", str(_POMS / f"{pom}.xml"), *defines]
    command += ["dependency:copy-dependencies", f"-DoutputDirectory={part}"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_FETCH_LIMIT_S,
                              check=False)  # fmt: skip
        if done.returncode:
            why = next((line for line in done.stdout.splitlines() if "ERROR" in line), f"exit code {done.returncode}")
            raise JarsMissingError(f"{folder.name}: Maven could not bring the jars: {why}")
        part.rename(folder)
    except subprocess.TimeoutExpired as exc:
        raise JarsMissingError(f"{folder.name}: Maven did not end within {_FETCH_LIMIT_S} s") from exc
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


@contextmanager
def kafka_server(jars: Path, folder: Path, partitions: int) -> Iterator[str]:
    """Run a broker of these jars with its log below ``folder``; gives its address."""
    port = free_port()
    with listening_server(prepare(jars, folder, port, partitions), folder / "log", port):
        yield f"127.0.0.1:{port}"


def prepare(jars: Path, folder: Path, port: int, partitions: int = 8) -> list[str]:
    """Format a store below ``folder`` and return the command that runs a broker on it.

    Args:
        jars: their folder.
        folder: of the store and the settings.
        port: where clients connect, on loopback.
        partitions: of topics that clients make by using them.
    """
    settings = folder / "server.properties"
    settings.write_text(_SETTINGS.format(port=port, controller=free_port(), folder=folder, partitions=partitions))
    java = ["java", "-Xmx1g", "-cp", f"{jars}/*"]
    cluster = uuid.uuid4().hex[:22]
    with (folder / "format.log").open("w") as log:
        subprocess.run([*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)], check=True,
                       stdout=log, stderr=log)  # fmt: skip
    return [*java, "kafka.Kafka", str(settings)]
