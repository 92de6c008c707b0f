"""FrameSplitter and the frame builders, fed as a socket does: whole, in pieces, with more behind."""

import struct
import time

import pytest

from tests.unit.protocol.memory import memory_below
from triomq.protocol.errors import FrameTooLargeError
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import (
    LONG_BYTES,
    LONG_FRAME_BYTES,
    MAX_FRAME_BYTES,
    MAX_HEADER_BYTES,
    Frame,
    FrameMemory,
    FrameReceiver,
    FrameSplitter,
    build_frame,
    explain_first_bytes,
    frame_prefix,
)

# wire.md 17.4: ROCKETMQ response, code 17, remark "no route"
FRAME = bytes.fromhex(
    "00000021 0100001d 0011 00 0197 00000001 00000001 00000008 6e6f20726f757465 00000000".replace(" ", "")
)


def length_field(length: int) -> bytes:
    return struct.pack(">i", length)


# --- splitting ---


def test_long_frame_not_copied_when_complete() -> None:
    long = build_frame(0, b'{"code":1}', bytes(LONG_FRAME_BYTES))
    stream = FRAME + long * 3 + FRAME
    splitter = FrameSplitter()
    frames: list[Frame] = []
    for start in range(0, len(stream), 100_000):
        frames += splitter.split(stream[start : start + 100_000])[0]
    assert frames == [FRAME[4:], long[4:], long[4:], long[4:], FRAME[4:]]
    for frame in frames[1:4]:
        body = RemotingCommand.decode(frame).body
        assert isinstance(frame, memoryview)
        assert isinstance(body, memoryview)
        assert body.obj is frame.obj
        assert isinstance(frame.obj, FrameMemory)
        assert len(frame.obj) == len(long)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_may_be_split_and_changed_afterwards(kind: type[bytes | bytearray | memoryview]) -> None:
    data = bytearray(FRAME + FRAME[:9])
    splitter = FrameSplitter()
    frames, _ = splitter.split(kind(data))
    data[:] = bytes(len(data))  # the owner reads into the same buffer again
    assert frames == [FRAME[4:]]
    assert splitter.split(FRAME[9:]) == ([FRAME[4:]], None)


# --- limits ---


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 2**30, MAX_FRAME_BYTES - 3, MAX_FRAME_BYTES, 0x47455420])
def test_invalid_length_is_rejected_without_waiting_for_data(length: int) -> None:
    """wire.md 1.2: 16 777 213 closes the connection at once."""
    splitter = FrameSplitter()
    with memory_below(16 * 1024):
        frames, error = splitter.split(length_field(length))
    assert frames == []
    assert type(error) is FrameTooLargeError
    assert str(length) in str(error)


def test_frames_before_lasting_error_are_returned() -> None:
    """They were good, and their senders wait for answers."""
    splitter = FrameSplitter()
    assert splitter.split(FRAME[:5]) == ([], None)
    frames, error = splitter.split(FRAME[5:] + FRAME + length_field(-1) + FRAME)
    assert frames == [FRAME[4:]] * 2
    assert isinstance(error, FrameTooLargeError)
    for _ in range(3):
        assert splitter.split(FRAME) == ([], error)
        assert splitter.pending_bytes == 0


@pytest.mark.parametrize(
    ("start", "name"),
    [
        (b"GET / HTTP/1.1\r\n", "HTTP client"),
        (b"POST /topic HTTP/1.1\r\n", "HTTP client"),
        (b"PRI * HTTP/2.0\r\n", "5.x gRPC clients need a proxy"),
        (b"HTTP/1.1 400 Bad Request", "HTTP server"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH"),
        (b"\x16\x03\x01\x02\x00\x01", "TLS"),
        (b"AMQP\x00\x00\x09\x01", "AMQP"),
        (b"*1\r\n$4\r\nPING\r\n", "Redis"),
        (b"\xde\xad\xbe\xef", "does not speak RocketMQ Remoting"),
    ],
)
def test_error_names_protocol_that_stranger_speaks(start: bytes, name: str) -> None:
    _, error = FrameSplitter().split(start)
    assert name in str(error)
    assert name in explain_first_bytes(start[:4])


# --- cost ---


def test_long_frame_in_chunks_takes_linear_time() -> None:
    """To copy waiting bytes at each read would move 32 GiB; this moves some 50 MiB, in a few hundredths of a second."""
    body = bytes(MAX_FRAME_BYTES - 8)
    frame = length_field(MAX_FRAME_BYTES - 4) + bytes(4) + body
    pieces = [frame[start : start + 4096] for start in range(0, len(frame), 4096)]
    splitter = FrameSplitter()
    began = time.process_time()
    with memory_below(5 * MAX_FRAME_BYTES // 2):
        found = [len(one) for piece in pieces for one in splitter.split(piece)[0]]
    assert time.process_time() - began < 2
    assert found == [len(frame) - 4]


# --- building ---


def test_frame_is_length_type_header_length_header_body() -> None:
    assert build_frame(1, b"header", b"body") == bytes.fromhex("0000000e 01000006") + b"header" + b"body"


def test_longest_legal_frame_is_built_and_longer_rejected() -> None:
    body = bytes(MAX_FRAME_BYTES - 8 - 2)
    frame = build_frame(0, b"{}", body)
    assert len(frame) == MAX_FRAME_BYTES
    assert FrameSplitter().split(frame)[1] is None
    with pytest.raises(FrameTooLargeError, match="16777213"):
        build_frame(0, b"{}", body + b"!")
    with pytest.raises(FrameTooLargeError):
        frame_prefix(0, b"{}", len(body) + 1)


def test_oversized_header_is_rejected_before_hitting_type_byte() -> None:
    assert len(build_frame(0, bytes(MAX_HEADER_BYTES))) == 8 + MAX_HEADER_BYTES
    for header in (bytes(MAX_HEADER_BYTES + 1), bytes(2**24)):
        with pytest.raises(FrameTooLargeError, match=str(len(header))):
            build_frame(0, header)
        with pytest.raises(FrameTooLargeError):
            frame_prefix(0, header, 0)


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


def test_buffer_fits_exactly_rest_of_long_frame() -> None:
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


def test_full_reads_enlarge_the_next_read() -> None:
    receiver = FrameReceiver(MAX_FRAME_BYTES)
    receive(receiver, (SHORT * LONG_BYTES)[:LONG_BYTES])
    assert len(receiver.room()) == 1024**2
    receiver.room()[:10] = bytes(10)
    receiver.received(0)
    assert len(receiver.room()) == LONG_BYTES


def test_long_frame_decoded_into_memory_of_own() -> None:
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
