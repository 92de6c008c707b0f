"""Ends of the replication in any state."""

from dataclasses import dataclass, field
from typing import Any

from triomq.broker.replication.lag import SlaveState


@dataclass
class FakeMaster:
    """Has the attributes of ``Master`` that show its state."""

    slaves: list[SlaveState] = field(default_factory=list)
    sent_bytes: int = 0


@dataclass
class FakeSlave:
    """Likewise for ``Slave``."""

    master: str | None = None
    last_received_s: float | None = None
    last_reported_s: float | None = None
    taken_bytes: int = 0


def slave_state(peer: str, **changes: Any) -> SlaveState:
    """Return a slave that has reported."""
    state = SlaveState(
        peer,
        acknowledged_offset=70,
        lag_bytes=0,
        lag_s=None,
        report_age_s=0.0,
        sent_offset=90,
        sent_bytes=1000,
    )
    return state._replace(**changes)
