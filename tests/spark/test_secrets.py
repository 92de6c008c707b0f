"""Scenario 46: no error shows a secret."""

from pathlib import Path

import pytest

from tests.spark.harness import Topics, numbered, run_program

LEAKING_S = 300
SECRET = "xq7hidden4marker9zz"


@pytest.mark.slow
@pytest.mark.timeout(LEAKING_S + 60)
def test_secret_appears_in_no_file_or_log(topics: Topics, tmp_path: Path) -> None:
    """Scenario 46: in event log, logs, plans, progress and checkpoints, after signed reads and writes.

    Also after errors of all kinds, including those of options, which name the option, never its value.
    """
    topic = topics.make(1)
    topics.send(topic, numbered(5))
    folder, secret_file = tmp_path / "out", tmp_path / "secret"
    folder.mkdir()
    secret_file.write_text(SECRET)
    words = ("tests.spark.leaking", topics.namesrv, topic, str(folder), str(secret_file))
    done = run_program(*words, timeout_s=LEAKING_S)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:].replace(SECRET, "<SECRET>")
    assert int(done.stdout.splitlines()[-1].split()[0]) >= 20
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    texts = {
        **{str(path): text for path, text in files.items()},
        "stdout": done.stdout.encode(),
        "stderr": done.stderr.encode(),
    }
    assert any(b"SparkListenerSQLExecutionStart" in text for text in files.values())
    assert any(b"broker-a" in text for text in files.values())
    assert "secretKey" in done.stdout
    assert b"INFO org.apache.spark" in files[folder / "driver.log"]
    assert [name for name, text in texts.items() if SECRET.encode() in text] == []
