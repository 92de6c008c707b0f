"""Where two logs part: any common beginning, ends of any length."""

import trio
from hypothesis import given
from hypothesis import strategies as st

from triomq.broker.replication.comparison import first_difference

_OTHER = bytes(255 - each for each in range(256))


@given(
    common=st.binary(max_size=3000),
    own=st.binary(max_size=3000),
    others=st.binary(max_size=3000),
    low=st.integers(0, 3000),
    piece=st.integers(1, 300),
)
def test_first_difference_is_found_in_few_pieces(
    common: bytes, own: bytes, others: bytes, low: int, piece: int
) -> None:
    shared = min(len(own), len(others))
    ours, theirs = common + own, common + own[:shared].translate(_OTHER) + others[shared:]
    high = min(len(ours), len(theirs))
    low = min(low, high)
    asked: list[tuple[int, int]] = []

    async def differs(begin: int, end: int) -> bool:
        assert low <= begin <= end <= high
        assert end - begin <= piece
        asked.append((begin, end))
        return ours[begin:end] != theirs[begin:end]

    found = trio.run(first_difference, differs, low, high, piece)
    expected = max(len(common), low) if shared and high > low else None
    assert found == expected
    assert len(asked) <= 1 if found is None else len(asked) < 40
