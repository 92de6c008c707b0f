import shutil
import subprocess
from pathlib import Path

import pytest

from triomq.cli import main


def complete(script: str, *words: str) -> list[str]:
    """The words that bash offers for the last of ``words``."""
    line = " ".join(f'"{word}"' for word in words)
    program = f'{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _triomq; printf "%s\\n" "${{COMPREPLY[@]}}"'
    return subprocess.run(("bash", "-c", program), capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    main(["completion", "zsh"])
    assert capsys.readouterr().out == f"autoload -Uz bashcompinit && bashcompinit\n{script}"
    assert complete(script, "triomq", "pr") == ["produce"]
    assert complete(script, "triomq", "group", "res") == ["reset-offset"]
    assert complete(script, "triomq", "produce", "T", "--in") == ["--in-flight"]
    assert complete(script, "triomq", "broker", "--adv") == ["--advertise"]
    assert complete(script, "triomq", "broker", "status", "--namesr") == ["--namesrv"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_completes_commands_and_options(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["completion", "fish"]) == 0
    script = capsys.readouterr().out
    for line, word in (("triomq group res", "reset-offset"), ("triomq broker status --namesr", "--namesrv")):
        program = f"{script}\ncomplete -C '{line}'"
        done = subprocess.run(("fish", "-N", "-c", program), capture_output=True, text=True, check=True, cwd=tmp_path)
        assert done.stdout.split() == [word]
