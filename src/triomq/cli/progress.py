"""Progress bars, on a terminal only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int], None]
"""Takes what is done so far and what there is in all."""


@contextmanager
def progress_bar(text: str, *, is_writing: bool = False) -> Iterator[Report | None]:
    """Show a bar on stderr while the block runs, if that is a terminal; else give ``None``.

    A block that writes to stdout has none if that is a terminal too: lines and bar would be in each other's way.
    """
    if not sys.stderr.isatty() or (is_writing and sys.stdout.isatty()):
        yield None
        return
    from rich.console import Console  # 50 ms, only where a bar is drawn
    from rich.progress import Progress

    # else rich takes what is written to stdout for its own, and a file that it was redirected to stays empty
    with Progress(console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
