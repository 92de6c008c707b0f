"""Memory of a decoder compared with the size that a peer claims."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def memory_below(limit_bytes: int) -> Iterator[None]:
    """Fail if the block ever holds so much memory that it allocated."""
    tracemalloc.start()
    try:
        yield
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < limit_bytes
