"""Size of the product: lines of code by folder, and files and functions above CONTRIBUTING.md's limits.

``python -m bench.size`` prints a table; ``--check`` prints files and functions above the limits and fails if there are
any.  Blank lines, comments and docstrings do not count as lines of code; the limits are about lines as a reader sees
them, without the docstring for functions.
"""

import argparse
import ast
import io
import signal
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
ROOMS: Final = ("protocol", "common", "storage", "broker", "client", "spark", "dashboard", "cli", "testing", "demo")
TESTS: Final = ("tests", "bench")
MAX_FILE_LINES: Final = 400
MAX_FUNCTION_LINES: Final = 40
#: Hot paths that are longer than a function should be, because a call for each message costs too much.
LONG_FUNCTIONS: Final = frozenset(
    (
        "broker/processors/plain_requests.py:PlainRequests._entry",  # each message of a usual producer
        "protocol/record/intact_record.py:IntactWalk.run",  # each record of a scan of the commit log
        "storage/append.py:Appender._pack",  # each message appended
        "storage/reading/get_message.py:_RecordReader.scan",  # each message pulled
        "storage/reading/record_copies.py:CopyReader.read",  # each delayed message delivered
    )
)

_NO_CODE: Final = frozenset(
    (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
)


class Function(NamedTuple):
    """A function: its file, qualified name and length in lines without decorators and docstring."""

    path: Path
    name: str
    lines: int


def python_files(folder: Path) -> list[Path]:
    """Return the modules below a folder, without those behind symbolic links."""
    return sorted(path for path in folder.rglob("*.py") if not _is_linked(path, folder))


def _is_linked(path: Path, folder: Path) -> bool:
    return any(parent.is_symlink() for parent in path.parents if parent != folder and folder in parent.parents)


def code_lines(source: str) -> int:
    """Count the lines of ``source`` that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = _docstring(node)
            if docstring is not None:
                lines.difference_update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return len(lines)


def functions(path: Path) -> Iterator[Function]:
    """Yield all functions of a module."""

    def walk(node: ast.AST, prefix: str) -> Iterator[Function]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = _docstring(child)
                length = (child.end_lineno or child.lineno) - child.lineno + 1
                if docstring is not None:
                    length -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
                yield Function(path, prefix + child.name, length)
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from walk(child, f"{prefix}{child.name}.")
            else:
                yield from walk(child, prefix)

    return walk(ast.parse(path.read_text(encoding="utf-8")), "")


def _docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> ast.Expr | None:
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return first
    return None


def excesses() -> Iterator[str]:
    """Yield a line for each file and function of the product above its limit."""
    for room in ROOMS:
        for path in python_files(ROOT / room):
            shown = path.relative_to(ROOT)
            lines = path.read_text(encoding="utf-8").count("\n")
            if lines > MAX_FILE_LINES:
                yield f"{shown}: {lines} lines, at most {MAX_FILE_LINES}"
            for function in functions(path):
                if function.lines > MAX_FUNCTION_LINES and f"{shown}:{function.name}" not in LONG_FUNCTIONS:
                    yield f"{shown}:{function.name}: {function.lines} lines, at most {MAX_FUNCTION_LINES}"


def table(rooms: tuple[str, ...]) -> tuple[list[str], int, int]:
    """Return a line for each folder of ``rooms`` and for each room, then all lines of code and all files."""
    rows: list[str] = []
    total_lines = total_files = 0
    for room in rooms:
        sizes: dict[str, list[int]] = {}
        for path in python_files(ROOT / room):
            folder = path.relative_to(ROOT).parent.as_posix()
            sizes.setdefault(folder, []).append(code_lines(path.read_text(encoding="utf-8")))
        room_lines, room_files = sum(map(sum, sizes.values())), sum(map(len, sizes.values()))
        rows += [f"  {folder:38} {len(counts):5} {sum(counts):7,}" for folder, counts in sorted(sizes.items())]
        rows.append(f"{room:40} {room_files:5} {room_lines:7,}")
        total_lines += room_lines
        total_files += room_files
    return rows, total_lines, total_files


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m bench.size", description="Lines of code by folder.")
    parser.add_argument("--check", action="store_true", help="print what is above the limits, and fail if anything is")
    if parser.parse_args().check:
        found = list(excesses())
        sys.stdout.writelines(f"{line}\n" for line in found)
        return 1 if found else 0
    for title, rooms in (("product", ROOMS), ("tests and bench", TESTS)):
        rows, lines, files = table(rooms)
        sys.stdout.write(f"{'folder':40} files   lines\n" + "".join(f"{row}\n" for row in rows))
        sys.stdout.write(f"{title:40} {files:5} {lines:7,}\n\n")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # ``python -m bench.size | head`` ends without a traceback
    sys.exit(main())
