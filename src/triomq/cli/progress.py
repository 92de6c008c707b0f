"""Progress bars, on a terminal only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int], None]
"""Takes what is done so far and what there is in all."""


@contextmanager
def progress_bar(text: str) -> Iterator[Report | None]:
    """Show a bar on stderr while the block runs, if that is a terminal; else give ``None``."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # 50 ms, only where a bar is drawn
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
