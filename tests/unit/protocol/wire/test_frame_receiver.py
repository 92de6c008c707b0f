"""Long frames received where they lie, fed as a socket does."""

import pytest

from triomq.protocol.errors import FrameTooLargeError
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import MAX_FRAME_BYTES, build_frame
from triomq.protocol.wire.frame_receiver import LONG_BYTES, FrameReceiver

SHORT = build_frame(0, b"{}", b"short")
LONG = build_frame(0, b"{}", bytes(range(256)) * 2000)


def receive(receiver: FrameReceiver, stream: bytes) -> list[bytes]:
    """Receive all of the stream, as much at once as there is room for."""
    found: list[bytes] = []
    while stream:
        room = receiver.room()
        count = min(len(room), len(stream))
        room[:count] = stream[:count]
        frames, error = receiver.received(count)
        assert error is None
        found += map(bytes, frames)
        stream = stream[count:]
    return found


def test_short_and_long_frames_come_in_their_order() -> None:
    frames = [SHORT, LONG, SHORT, SHORT, LONG, LONG, SHORT]
    assert receive(FrameReceiver(MAX_FRAME_BYTES), b"".join(frames)) == [frame[4:] for frame in frames]


@pytest.mark.parametrize("cut", [1, 3, 4, 5, LONG_BYTES - 1, LONG_BYTES, LONG_BYTES + 1, len(LONG) - 1])
def test_a_long_frame_in_two_pieces_is_one_frame(cut: int) -> None:
    receiver = FrameReceiver(MAX_FRAME_BYTES)
    assert receive(receiver, LONG[:cut]) == []
    assert receive(receiver, LONG[cut:] + SHORT) == [LONG[4:], SHORT[4:]]


def test_buffer_fits_exactly_the_rest_of_a_long_frame() -> None:
    receiver = FrameReceiver(MAX_FRAME_BYTES)
    assert len(receiver.room()) == LONG_BYTES
    receive(receiver, LONG[:100])
    assert len(receiver.room()) == len(LONG) - 100
    receive(receiver, LONG[100:1000])
    assert len(receiver.room()) == len(LONG) - 1000


def test_consecutive_long_frames_reuse_the_same_memory() -> None:
    receiver = FrameReceiver(MAX_FRAME_BYTES)
    receive(receiver, LONG)
    places = set()
    for _ in range(3):
        receive(receiver, LONG[:LONG_BYTES])
        places.add(id(receiver.room().obj))
        receive(receiver, LONG[LONG_BYTES:])
    assert len(places) == 1


def test_a_very_long_frame_leaves_no_memory_behind() -> None:
    receiver = FrameReceiver(MAX_FRAME_BYTES)
    receive(receiver, build_frame(0, b"{}", bytes(8 * 1024**2)))
    assert len(receiver.room()) <= 1024**2
    assert len(memoryview(receiver.room().obj)) <= 2 * 1024**2


def test_full_reads_get_more_room_until_one_is_not_full() -> None:
    receiver = FrameReceiver(MAX_FRAME_BYTES)
    receive(receiver, (SHORT * LONG_BYTES)[:LONG_BYTES])
    assert len(receiver.room()) == 1024**2
    receiver.room()[:10] = bytes(10)
    receiver.received(0)
    assert len(receiver.room()) == LONG_BYTES


def test_a_long_frame_is_decoded_into_memory_of_its_own() -> None:
    receiver = FrameReceiver(MAX_FRAME_BYTES)
    stream = RemotingCommand(0, 7, 1, {"a": "b"}, bytes(300_000)).encode()
    receive(receiver, stream[:1000])
    room = receiver.room()
    room[:] = stream[1000:]
    (frame,), _ = receiver.received(len(room))
    command = RemotingCommand.decode(frame)
    receive(receiver, LONG)
    assert type(command.body) is bytes
    assert (command.opaque, command.ext_fields, command.body) == (7, {"a": "b"}, bytes(300_000))


def test_length_above_limit_is_rejected_before_allocation() -> None:
    receiver = FrameReceiver(LONG_BYTES * 4)
    room = receiver.room()
    room[:4] = LONG[:4]
    frames, error = receiver.received(4)
    assert frames == []
    assert isinstance(error, FrameTooLargeError)
    assert len(receiver.room()) == LONG_BYTES
