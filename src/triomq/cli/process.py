"""What a process that is a broker, and nothing else, asks of the operating system and of Python."""

import gc
import logging
import resource
from typing import Final

LOGGER: Final = logging.getLogger("triomq.cli.process")

#: Objects made, and not freed, before Python looks for garbage in cycles.  A broker makes many that live for the length
#: of one step and hardly any cycle: with Python's 700 it would look several times in each step.
_GC_THRESHOLD: Final = 20_000


def raise_open_files_limit() -> None:
    """Allow as many open files as the system lets this user have: each mapped file and each client takes some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as exc:
            LOGGER.info("open files stay limited limit=%d error=%s", soft, exc)


def settle_garbage_collector() -> None:
    """Leave what exists now, modules above all, out of every later search for garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 20, 20)
