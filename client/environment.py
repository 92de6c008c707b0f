"""Wall clock and random numbers of the client.

All of the room takes them from here, so that a simulation replaces them in one place.  Elapsed time is trio's clock;
sockets are made in ``connection/pool.py``.
"""

import random
import time
from typing import Final

#: Spreads load and makes ids; each process, a forked one too, draws its own numbers.
RANDOM: Final = random.SystemRandom()


def wall_clock_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
