"""``python -m tests.mutations``: changes one line of the product at a time, and checks that a test fails.

    python -m tests.mutations --pick 60 --seed 37    choose mutations, spread over the rooms by size
    python -m tests.mutations --run [FOLDER...]      try those of mutations.json; exit code 1 if one newly survives

``mutations.json`` holds each mutation as its file, the line before and after, and whether it survived when it was
chosen.  A line that moved is found by its text.  If a line was rewritten, edit its entry so that it changes the same
behaviour.  Runs in a copy of the working tree, so the tree itself is never changed.
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.size import ROOMS, python_files

ROOT: Final = Path(__file__).resolve().parents[1]
LIST: Final = Path(__file__).with_suffix(".json")
TIMEOUT_S: Final = 3600
OPERATORS: Final = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
    ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.And: "or", ast.Or: "and",
}  # fmt: skip
TOKENS: Final = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.And: "and", ast.Or: "or",
}  # fmt: skip


def mutations(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each line of a module that can be mutated, with the mutated line."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for statement in function.body:
            for node in ast.walk(statement):
                found = mutation(node)
                if found is None:
                    continue
                before, after, old, new = found
                if before.end_lineno != after.lineno:
                    continue
                line = lines[after.lineno - 1]
                begin, end = before.end_col_offset or 0, after.col_offset
                if line.isascii() and line[begin:end].strip() == old and source.count(line + "\n") == 1:
                    yield line, f"{line[:begin]} {new} {line[end:]}"


def mutation(node: ast.AST) -> tuple[ast.expr, ast.expr, str, str] | None:
    """Return the operands around an operator, the operator, and the one to put there."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return left, right, TOKENS[type(op)], OPERATORS[type(op)]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return left, right, TOKENS[type(op)], OPERATORS[type(op)]
        case ast.BoolOp(op=op, values=[left, right, *_]):
            return left, right, TOKENS[type(op)], OPERATORS[type(op)]
    return None


def pick(count: int, seed: int) -> list[dict[str, object]]:
    """Choose mutations at random, as many for each room as its share of the candidates."""
    chosen: list[dict[str, object]] = []
    found = {
        room: [(path, *change) for path in python_files(ROOT / room) for change in mutations(path)] for room in ROOMS
    }
    total = sum(map(len, found.values()))
    for room, candidates in found.items():
        wanted = max(1, round(count * len(candidates) / total))
        for path, old, new in random.Random(f"{seed} {room}").sample(candidates, wanted):
            chosen.append({"file": str(path.relative_to(ROOT)), "line": old.strip(), "mutated": new.strip()})
    return chosen


def suites(file: str) -> list[list[str]]:
    """Return the tests to run for a mutated file, the nearest ones first."""
    room, *folders, name = file.split("/")
    unit = Path("tests/unit", room, *folders)
    nearest = [str(path) for path in (unit / f"test_{name}", unit) if (ROOT / path).exists()][:1]
    wide = [
        f"tests/unit/{room}",
        "tests/property",
        *(["tests/integration"] if room in ("broker", "client", "cli", "testing") else []),
    ]
    return [suite for suite in (nearest, [path for path in wide if (ROOT / path).exists()]) if suite]


def survives(copy: Path, file: str, old: str, new: str) -> bool:
    """Run tests with a line changed; return whether all pass.

    Raises:
        SystemExit: the line is not there.
    """
    paths = [copy / file, *(path for room in ROOMS for path in python_files(copy / room))]
    for path in paths:
        source = path.read_text(encoding="utf-8") if path.exists() else ""
        matching = [line for line in source.splitlines() if line.strip() == old]
        if len(matching) == 1:
            break
    else:
        raise SystemExit(f"{file}: not found: {old}; edit tests/mutations.json")
    path.write_text(source.replace(matching[0], matching[0].replace(old, new)), encoding="utf-8")
    try:
        return not any(is_caught(copy, suite) for suite in suites(str(path.relative_to(copy))))
    finally:
        path.write_text(source, encoding="utf-8")


def is_caught(copy: Path, suite: list[str]) -> bool:
    """Run tests; return whether one fails twice, so that a failure by chance does not count."""
    failed = failures(copy, suite)
    return bool(failed and (failures(copy, failed) or ((failed := failures(copy, suite)) and failures(copy, failed))))


def failures(copy: Path, suite: list[str]) -> list[str]:
    """Run tests until the first failure; return the failed test, if any."""
    environment = {**os.environ, "PYTHONPATH": str(copy / "src")}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *suite]
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return suite
    return re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE) or suite if done.returncode else []


def run(folders: tuple[str, ...]) -> int:
    """Try the mutations of the list that are in ``folders``; return the exit code."""
    entries = json.loads(LIST.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="triomq-mutations-") as folder:
        copy = Path(folder, "copy")
        ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", "target", "build")
        shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)
        worse = 0
        for number, entry in enumerate(entries, 1):
            if not entry["file"].startswith(folders):
                continue
            survived = survives(copy, entry["file"], entry["line"], entry["mutated"])
            is_worse = survived and not entry.get("survived", survived)
            worse += is_worse
            entry.setdefault("survived", survived)
            result = "NEWLY SURVIVES" if is_worse else "survives" if survived else "killed"
            sys.stdout.write(f"{number}/{len(entries)} {result}: {entry['file']}: {entry['mutated']}\n")
            sys.stdout.flush()
            LIST.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    return 1 if worse else 0


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--pick", type=int, metavar="COUNT", help="choose mutations and write the list")
    parser.add_argument("--seed", type=int, default=37)
    parser.add_argument("--run", nargs="*", metavar="FOLDER", help="try the mutations of the list (default: all)")
    options = parser.parse_args()
    if options.pick:
        LIST.write_text(json.dumps(pick(options.pick, options.seed), indent=1) + "\n", encoding="utf-8")
    return 0 if options.run is None else run(tuple(options.run) or ("",))


if __name__ == "__main__":
    sys.exit(main())
