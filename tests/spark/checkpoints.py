"""What is in the checkpoint of a query with one source, which is ours."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from triomq.spark.reading.planning import StreamOffset

Json = dict[str, Any]


def logged(checkpoint: str) -> dict[int, StreamOffset]:
    """Return the offset of each micro-batch that was begun."""
    return {
        number: StreamOffset.from_json(json.loads(_lines(path)[-1])) for number, path in _log(checkpoint, "offsets")
    }


def durable(checkpoint: str) -> StreamOffset | None:
    """Return the end of the last completed micro-batch; ``None`` before the first."""
    done = [number for number, _ in _log(checkpoint, "commits")]
    return logged(checkpoint)[max(done)] if done else None


def change_newest(checkpoint: str, change: Callable[[Json], Json]) -> None:
    """Write another offset in the place of the newest one."""
    _, newest = max(_log(checkpoint, "offsets"))
    *before, offset = _lines(newest)
    newest.write_text("\n".join((*before, json.dumps(change(json.loads(offset))))))
    newest.with_name(f".{newest.name}.crc").unlink()


def _log(checkpoint: str, name: str) -> list[tuple[int, Path]]:
    return [(int(path.name), path) for path in Path(checkpoint, name).glob("*") if path.name.isdigit()]


def _lines(entry: Path) -> list[str]:
    """The lines of an entry: version, metadata of Spark's, and the offset of each source."""
    return entry.read_text().splitlines()
