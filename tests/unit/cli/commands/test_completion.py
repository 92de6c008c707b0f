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
    assert complete(script, "triomq", "pr") == ["produce"]
    assert complete(script, "triomq", "group", "res") == ["reset-offset"]
    assert complete(script, "triomq", "produce", "T", "--in") == ["--in-flight"]
    assert complete(script, "triomq", "broker", "--adv") == ["--advertise"]
    assert complete(script, "triomq", "broker", "status", "--namesr") == ["--namesrv"]


def test_zsh_gets_the_same_after_bashcompinit(capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    bash = capsys.readouterr().out
    main(["completion", "zsh"])
    assert capsys.readouterr().out == f"autoload -Uz bashcompinit && bashcompinit\n{bash}"


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("triomq prod", "produce"),
        ("triomq group res", "reset-offset"),
        ("triomq produce T --in", "--in-flight"),
        ("triomq broker status --namesr", "--namesrv"),
    ],
)
def test_fish_completes_commands_and_options(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, word: str
) -> None:
    assert main(["completion", "fish"]) == 0
    program = f"{capsys.readouterr().out}\ncomplete -C '{line}'"
    done = subprocess.run(("fish", "-N", "-c", program), capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.split() == [word]
