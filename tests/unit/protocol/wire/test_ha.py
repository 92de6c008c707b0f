"""Reports of slaves and frames of masters, in streams that are cut anywhere."""

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given

from triomq.protocol.errors import ProtocolError
from triomq.protocol.wire.ha import HEAD, MAX_FRAME_BYTES, REPORT, Frames, Reports, start_of

OFFSETS = st.integers(0, 2**63 - 1)
CUTS = st.lists(st.integers(1, 40))


def cut(stream: bytes, lengths: Sequence[int]) -> list[bytes]:
    """Divide a stream into parts of these lengths, and the rest."""
    parts = []
    for length in lengths:
        parts.append(stream[:length])
        stream = stream[length:]
    return [*parts, stream]


@given(st.lists(OFFSETS), CUTS)
def test_last_complete_report_counts(offsets: list[int], cuts: list[int]) -> None:
    reports, complete, received = Reports(), 0, 0
    for part in cut(b"".join(map(REPORT.pack, offsets)), cuts):
        received += len(part)
        expected = offsets[received // 8 - 1] if received // 8 > complete else None
        complete = received // 8
        assert reports.feed(part) == expected


@given(st.lists(st.tuples(OFFSETS, st.binary(max_size=50))), CUTS)
def test_frames_whole_wherever_stream_is_cut(sent: list[tuple[int, bytes]], cuts: list[int]) -> None:
    frames, received = Frames(), []
    ends, end = [], 0
    for _, data in sent:
        end += HEAD.size + len(data)
        ends.append(end)
    fed = 0
    for part in cut(b"".join(HEAD.pack(offset, len(data)) + data for offset, data in sent), cuts):
        buffer = bytearray(part)
        received += [(offset, bytes(data)) for offset, data in frames.feed(buffer)]
        buffer[:] = bytes(len(buffer))  # the owner reads into the same buffer again
        fed += len(part)
        assert len(received) == sum(end <= fed for end in ends)
    assert received == sent


def test_largest_frame_taken() -> None:
    data = bytes(MAX_FRAME_BYTES - HEAD.size)
    frames = Frames()
    parts = cut(HEAD.pack(7, len(data)) + data, [5, 100, 2**20])
    assert [(offset, len(view)) for part in parts for offset, view in frames.feed(part)] == [(7, len(data))]


@pytest.mark.parametrize("size", [-1, MAX_FRAME_BYTES - HEAD.size + 1, 2**31 - 1])
@pytest.mark.parametrize("first_bytes", [1, 11, 12])
def test_wrong_size_raises_after_good_frames(size: int, first_bytes: int) -> None:
    frames = Frames()
    received: list[tuple[int, bytes]] = []
    head = HEAD.pack(30, size)

    def feed_all() -> None:
        for part in (HEAD.pack(0, 3) + b"abc" + head[:first_bytes], head[first_bytes:] + bytes(9)):
            received.extend((offset, bytes(data)) for offset, data in frames.feed(part))

    with pytest.raises(ProtocolError, match=rf"at 30: {size} bytes"):
        feed_all()
    assert received == [(0, b"abc")]


@pytest.mark.parametrize(
    ("report", "log_end", "start"),
    [(0, 0, 0), (0, 99, 0), (0, 100, 100), (0, 250, 200), (1, 250, 1), (250, 250, 250), (300, 250, 300)],
)
def test_first_report_fixes_start(report: int, log_end: int, start: int) -> None:
    assert start_of(report, log_end, 100) == start
