"""Which broker has a name: what another one answers about its promotion."""

import pytest

from triomq.broker.services.rank import outranked, promoted_ms_in
from triomq.protocol.requests.topics import PROMOTED
from triomq.protocol.wire.command import RemotingCommand


@pytest.mark.parametrize(
    ("text", "promoted_ms"),
    [("1795750420792", 1795750420792), ("9" * 13, 10**13 - 1), ("9" * 14, 0), ("9" * 5000, 0), ("-1", 0), ("x", 0)],
)
def test_impossible_times_of_promotions_count_as_none(text: str, promoted_ms: int) -> None:
    found = promoted_ms_in(RemotingCommand(0, 1, 1, {PROMOTED: text}))
    assert found == promoted_ms
    assert "was promoted at " in outranked("broker-a", "192.0.2.1:10911", found)
