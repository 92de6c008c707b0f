"""The result of a job as tables or one line of JSON, and errors as one line.

Spark wraps an error of a Python source several times, each with a traceback.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from triomq.cli.output import Cell, write_json, write_table

_MAX_ERROR_LENGTH: Final = 2000
_NO_PACKAGE: Final = re.compile(r"No module named '(?:triomq|orjson|trio)\b")
_NO_PACKAGE_HINT: Final = (
    "; install it on all nodes, or make a zip with 'python -m triomq.spark.archive triomq-spark.zip' and give "
    "spark-submit --py-files triomq-spark.zip"
)
#: The end of Python's traceback, inside the JVM's text.
_OUR_ERROR: Final = re.compile(r"^(?:triomq\.[\w.]+|[A-Za-z_.]*(?:Error|Exception)): (.+)$", re.MULTILINE)
_OURS_FIRST: Final = re.compile(r"triomq\.protocol\.errors\.\w+: (.+)")
#: The last cause that the JVM gives; the start of py4j's text, the failed call, does not help.
_JVM_CAUSE: Final = re.compile(r"^(?:: |Caused by: )(?:[\w$]+\.)*([\w$]+): (.+)$", re.MULTILINE)


@dataclass(kw_only=True)
class Outcome:
    """Counts of a run.

    Attributes:
        job: its name.
        rows: messages read or written; ``None``: unknown, since a batch did not finish.
        body_bytes: total size of their bodies.
        batches: micro-batches; ``None``: not a stream.
        seconds: run time without the start of Spark.
        more: further counts of this job by name.
        table: result of the job: columns and rows.
    """

    job: str
    rows: int | None = None
    body_bytes: int | None = None
    batches: int | None = None
    seconds: float = 0.0
    more: dict[str, Cell] = field(default_factory=dict)
    table: tuple[Sequence[str], Sequence[Sequence[Cell]]] | None = None

    def counts(self) -> dict[str, Cell]:
        """Return the counts of the job by name."""
        counts: dict[str, Cell] = {"job": self.job, "rows": self.rows, "bytes": self.body_bytes}
        if self.batches is not None:
            counts["batches"] = self.batches
        counts |= self.more
        counts["seconds"] = round(self.seconds, 1)
        counts["rows/s"] = None if self.rows is None or not self.seconds else round(self.rows / self.seconds)
        return counts

    def write(self, *, as_json: bool) -> None:
        """Print tables, the counts last, or one line of JSON."""
        counts = self.counts()
        if as_json:
            found: dict[str, Any] = dict(counts)
            if self.table is not None:
                columns, rows = self.table
                found["table"] = [dict(zip(columns, row, strict=True)) for row in rows]
            write_json(found)
            return
        if self.table is not None:
            write_table(*self.table)
        write_table(tuple(counts), [tuple(counts.values())])


def one_line(error: BaseException) -> str:
    """Return the essence of an error: our error inside Spark's if there is one."""
    text = str(error)
    if found := _OURS_FIRST.search(text) or _last(_OUR_ERROR, text):
        line = found[1]
    elif found := _last(_JVM_CAUSE, text):
        line = f"{found[1]}: {found[2]}"
    else:
        line = next(iter(text.strip().splitlines()), type(error).__name__)
    hint = _NO_PACKAGE_HINT if _NO_PACKAGE.search(line) else ""
    return " ".join(line.split())[:_MAX_ERROR_LENGTH] + hint


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(reversed(list(pattern.finditer(text))), None)


def as_pairs(texts: Sequence[str]) -> Mapping[str, str]:
    """Read ``NAME=VALUE`` texts.

    Raises:
        ValueError: one has no ``=``.
    """
    pairs = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise ValueError(f"--option takes NAME=VALUE, not {name!r}")
        pairs[name.strip()] = value
    return pairs
