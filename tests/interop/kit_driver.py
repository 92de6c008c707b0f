"""Run the programs of the conformance kit (``kit/README.md``) and read their output."""

import json
import os
import signal
import subprocess
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

KIT: Final = Path(__file__).parent / "kit"
START_TIMEOUT_S: Final = 600  # the first start downloads the jars
RUN_TIMEOUT_S: Final = 1100
STOP_TIMEOUT_S: Final = 60

Verdicts = Mapping[str, Mapping[str, Any]]


def run(command: Sequence[str | Path], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run one program of the kit; kill its process group at the time limit."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        raise AssertionError(f"{command} took more than {timeout_s} s\n{stdout}\n{stderr}") from None
    except BaseException:  # the session is ending: leave no process
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def java_classpath(version: str) -> str:
    """Return the jars of a version of the Java client, for other test programs; the first call builds the kit."""
    built = run([KIT / "run.sh", "--client", version, "list"], START_TIMEOUT_S)
    assert built.returncode == 0, built.stderr
    folder = Path(os.environ.get("CONFORMANCE_BUILD") or KIT / "target")
    newest = max(folder.glob(f"kit-{version}-*"), key=lambda path: path.stat().st_mtime)
    return f"{newest}/lib/*"


def apache_classpath(version: str) -> str:
    """Return the jars of a version of Apache's broker; the first call downloads them."""
    fetched = run([KIT / "run-apache.sh", "fetch", "--version", version], START_TIMEOUT_S)
    assert fetched.returncode == 0, fetched.stderr
    folder = Path(os.environ.get("CONFORMANCE_BUILD") or KIT / "target")
    return f"{folder}/apache-{version}/*"


@contextmanager
def java_program(
    source: str, *arguments: str, output: Path | int, version: str = "4.9.7"
) -> Iterator[subprocess.Popen[str]]:
    """Run a program of this folder beside the client's jars; kill it at the end of the block.

    Args:
        source: name of its file.
        arguments: of the program.
        output: takes stdout; its log is beside it.  Or ``subprocess.PIPE``.
        version: of the client.
    """
    command = ("java", "-Xmx256m", "-cp", java_classpath(version), str(KIT.parent / source), *arguments)
    with ExitStack() as stack:
        streams: list[Any] = [output, output]
        if isinstance(output, Path):
            streams = [stack.enter_context(path.open("wb")) for path in (output, output.with_suffix(".log"))]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=streams[0], stderr=streams[1], text=True)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def run_scenarios(
    program: Sequence[str], namesrv: str, scenarios: Iterable[str], logs: Path, *options: str
) -> dict[str, dict[str, Any]]:
    """Run scenarios of the Java or the Go kit in one process; return the verdict of each, by name.

    ``program`` is the kit's script with its first options, such as ``("run.sh", "--client", "5")``.  What fails is run
    once more, alone, and its second verdict counts: the kit has time limits, and the machine other work.  A warning
    then shows the first verdict.

    Raises:
        AssertionError: the kit could not be built, or ran too long; the text contains its output.
    """
    verdicts = _run_once(program, namesrv, scenarios, logs, *options)
    for failed in [name for name, verdict in verdicts.items() if verdict["verdict"] == "FAIL"]:
        warnings.warn(f"{failed} failed at first: {verdicts[failed]['detail'][:1000]}", stacklevel=2)
        again = logs / f"again-{failed}"
        again.mkdir()
        verdicts |= _run_once(program, namesrv, [failed], again, *options)
    return verdicts


def _run_once(
    program: Sequence[str], namesrv: str, scenarios: Iterable[str], logs: Path, *options: str
) -> dict[str, dict[str, Any]]:
    script, *first = program
    common = ("--namesrv", namesrv, "--strict", "--json", "--logs", str(logs))
    done = run([KIT / script, *first, *common, *options, *scenarios], RUN_TIMEOUT_S)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    verdicts = {line["scenario"]: line for line in lines if "scenario" in line}
    assert verdicts, f"{script} ended with code {done.returncode}\n{done.stdout}{done.stderr}"
    return verdicts


def check_verdict(verdicts: Verdicts, scenario: str) -> None:
    """Fail with the detail and the log of the scenario unless it passed; SKIP fails too."""
    assert scenario in verdicts, f"the kit did not report {scenario}"
    verdict = verdicts[scenario]
    if verdict["verdict"] != "PASS":
        log = Path(verdict["log"]) if verdict.get("log") else None
        text = log.read_text(encoding="utf-8", errors="replace")[-12000:] if log and log.is_file() else "no log"
        pytest.fail(f"{text}\n{verdict['verdict']} {scenario}: {verdict['detail']}", pytrace=False)


def wanted_scenarios(request: pytest.FixtureRequest, **same: object) -> list[str]:
    """Return the scenarios of this session's tests with these other parameters, in order.

    So ``pytest -k send_sync`` runs one scenario, not all.
    """
    parameters = [
        item.callspec.params
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and item.path == request.path
    ]
    found = (str(p["scenario"]) for p in parameters if "scenario" in p and same.items() <= p.items())
    return list(dict.fromkeys(found))


@dataclass(frozen=True, kw_only=True)
class ApacheBroker:
    """A running Apache name server and broker; addresses are ``HOST:PORT``."""

    version: str
    namesrv: str
    broker: str
    folder: Path
    pids: Mapping[str, int]


@dataclass
class ApacheBrokers:
    """Starts and stops Apache brokers below ``folder``."""

    folder: Path
    running: dict[str, ApacheBroker] = field(default_factory=dict)

    def get(self, version: str) -> ApacheBroker:
        """Return the broker of this version that all tests of the session share."""
        if version not in self.running:
            self.running[version] = self.start(version, self.folder / version)
        return self.running[version]

    def start(
        self,
        version: str,
        folder: Path,
        settings: Mapping[str, object] | None = None,
        *,
        acl: bool = False,
        join: str = "",
    ) -> ApacheBroker:
        """Start a name server and a broker; ``folder / "store-broker"`` may contain a store.

        With ``acl`` it requires signatures; the accounts are in the kit's README.  With ``join`` the broker also
        registers at this name server.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".run-apache").touch()  # allows the script to use a folder with a store
        options = [word for name, value in (settings or {}).items() for word in ("--set", f"{name}={value}")]
        options += ["--acl"] if acl else []
        options += ["--join", join] if join else []
        done = run([KIT / "run-apache.sh", "start", folder, "--version", version, *options], START_TIMEOUT_S)
        if done.returncode != 0:
            self.stop(folder)
            raise AssertionError(f"Apache {version} did not start\n{done.stdout}{done.stderr}")
        found = json.loads(done.stdout)
        return ApacheBroker(
            version=version, namesrv=found["namesrv"], broker=found["broker"], folder=folder, pids=found["pids"]
        )

    def stop(self, folder: Path) -> None:
        """Stop the processes of one folder and remove its files, including the store."""
        if (folder / "state").exists():
            # its files are not needed: killing saves the 10 to 20 s of an orderly stop
            done = run([KIT / "run-apache.sh", "stop", folder, "--kill", "--purge"], STOP_TIMEOUT_S)
            assert done.returncode == 0, done.stderr

    def pids(self, folder: Path) -> Mapping[str, int]:
        """Return the processes of one folder by role."""
        done = run([KIT / "run-apache.sh", "status", folder], STOP_TIMEOUT_S)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout)["pids"])

    def stop_broker(self, folder: Path, *, kill: bool) -> None:
        """Stop the broker of one folder and keep its store; an orderly stop may take 20 s."""
        done = run([KIT / "run-apache.sh", "stop-broker", folder, *(["--kill"] if kill else [])], STOP_TIMEOUT_S)
        assert done.returncode == 0, done.stderr

    def start_broker(self, folder: Path) -> None:
        """Restart the broker of one folder with the same ports and store."""
        done = run([KIT / "run-apache.sh", "start-broker", folder], START_TIMEOUT_S)
        assert done.returncode == 0, done.stderr

    def stop_all(self) -> None:
        """Stop the shared brokers."""
        with ExitStack() as stack:  # if one does not stop, the others still must
            for broker in self.running.values():
                stack.callback(self.stop, broker.folder)
            self.running.clear()
