"""Reads a Dockerfile: just the forms that ours uses."""

import json
import re
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]


class Instruction(NamedTuple):
    """One instruction; ``stage`` counts the ``FROM`` lines before it, itself included."""

    stage: int
    name: str
    arguments: str

    def words(self) -> list[str]:
        """The arguments of the exec form (a JSON list) or, split at blanks, of any other."""
        exec_form = re.search(r"\[.*\]$", self.arguments)
        return [str(word) for word in json.loads(exec_form[0])] if exec_form else self.arguments.split()


def read_dockerfile(path: Path = ROOT / "Dockerfile") -> list[Instruction]:
    """All instructions in order, comments left out and continued lines joined."""
    lines = (line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#"))
    instructions: list[Instruction] = []
    stage = 0
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, arguments = " ".join(line.split()).partition(" ")
        if name:
            stage += name == "FROM"
            instructions.append(Instruction(stage, name, arguments))
    return instructions


def last(name: str) -> Instruction:
    """The instruction of that name that takes effect in the image."""
    return [instruction for instruction in read_dockerfile() if instruction.name == name][-1]
