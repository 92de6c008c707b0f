"""Frames and commands as laws: any cut of a stream gives the same frames, and commands survive encoding."""

from unittest.mock import patch

import hypothesis.strategies as st
from hypothesis import given, settings

from tests.commands import make_command
from triomq.protocol.codes import LanguageCode, SerializeType
from triomq.protocol.errors import FrameTooLargeError, ProtocolError
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import Frame, FrameReceiver, FrameSplitter, build_frame

#: The same examples in every run.
REPEATABLE = settings(max_examples=200, deadline=None, derandomize=True)

INT32 = st.integers(-(2**31), 2**31 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
FRAME_PARTS = st.tuples(st.integers(0, 255), st.binary(max_size=40), st.binary(max_size=40))

COMMANDS = st.builds(
    make_command,
    code=INT16,
    opaque=INT32,
    flag=INT32,
    ext_fields=st.dictionaries(st.text(max_size=12), st.text(max_size=40), max_size=8),
    body=st.binary(max_size=60),
    remark=st.none() | st.text(min_size=1, max_size=40),
    serialize_type=st.sampled_from(list(SerializeType)).map(int),
    language=st.sampled_from(list(LanguageCode)).map(int),
    version=INT16,
)


@st.composite
def pieces_of(draw: st.DrawFn, stream: bytes) -> list[bytes]:
    """Draw a way in which a socket may hand over ``stream``."""
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    return [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


def split_all(pieces: list[bytes], max_frame_bytes: int = 2**24) -> tuple[list[Frame], ProtocolError | None, int]:
    splitter = FrameSplitter(max_frame_bytes)
    frames: list[Frame] = []
    error = None
    for piece in pieces:
        found, error = splitter.split(piece)
        frames += found
    return frames, error, splitter.pending_bytes


def receive_all(pieces: list[bytes], max_frame_bytes: int = 2**24) -> tuple[list[bytes], ProtocolError | None]:
    receiver = FrameReceiver(max_frame_bytes)
    frames: list[bytes] = []
    error = None
    for piece in pieces:
        while piece and error is None:
            room = receiver.room()
            count = min(len(room), len(piece))
            room[:count] = piece[:count]
            found, error = receiver.received(count)
            frames += map(bytes, found)
            piece = piece[count:]
    return frames, error


def fields_of(command: RemotingCommand) -> dict[str, object]:
    return {name: getattr(command, name) for name in RemotingCommand.__slots__}


@REPEATABLE
@given(st.data(), st.lists(FRAME_PARTS, max_size=6), st.binary(max_size=3))
def test_frames_come_back_however_the_stream_is_cut(
    data: st.DataObject, parts: list[tuple[int, bytes, bytes]], tail: bytes
) -> None:
    sent = [build_frame(*part) for part in parts]
    pieces = data.draw(pieces_of(b"".join(sent) + tail))
    assert split_all(pieces) == ([frame[4:] for frame in sent], None, len(tail))


@REPEATABLE
@given(st.data(), st.binary(max_size=200), st.sampled_from([8, 40, 2**24]))
def test_garbage_gives_same_result_for_any_split(data: st.DataObject, garbage: bytes, max_frame_bytes: int) -> None:
    frames, error, pending = split_all([garbage], max_frame_bytes)
    in_pieces = split_all(data.draw(pieces_of(garbage)), max_frame_bytes)
    assert in_pieces[0] == frames
    assert repr(in_pieces[1]) == repr(error)
    assert in_pieces[2] == pending
    assert sum(4 + len(frame) for frame in frames) + pending <= len(garbage)


@REPEATABLE
@given(st.data(), st.lists(FRAME_PARTS, max_size=6), st.binary(max_size=60), st.integers(4, 40))
def test_frames_received_in_place_equal_split_frames(
    data: st.DataObject, parts: list[tuple[int, bytes, bytes]], garbage: bytes, long_bytes: int
) -> None:
    stream = b"".join(build_frame(*part) for part in parts) + garbage
    expected = split_all([stream])
    with (
        patch("triomq.protocol.wire.frame.LONG_BYTES", long_bytes),
        patch("triomq.protocol.wire.frame.LONG_FRAME_BYTES", long_bytes),
    ):
        assert split_all(data.draw(pieces_of(stream)))[0] == expected[0]
        found = receive_all(data.draw(pieces_of(stream)))
    assert found[0] == expected[0]
    assert repr(found[1]) == repr(expected[1])


@REPEATABLE
@given(st.lists(st.binary(max_size=100), max_size=10), st.integers(8, 64))
def test_buffer_holds_at_most_one_maximum_frame(pieces: list[bytes], max_frame_bytes: int) -> None:
    splitter = FrameSplitter(max_frame_bytes)
    for piece in pieces:
        frames, error = splitter.split(piece)
        assert splitter.pending_bytes < max_frame_bytes
        assert all(4 <= len(frame) <= max_frame_bytes - 4 for frame in frames)
        assert error is None or splitter.pending_bytes == 0


@REPEATABLE
@given(INT32 | st.integers(-1, 8), st.integers(8, 2**24))
def test_length_is_rejected_exactly_when_outside_limits(length: int, max_frame_bytes: int) -> None:
    _, error = FrameSplitter(max_frame_bytes).split(length.to_bytes(4, "big", signed=True))
    assert (error is None) == (4 <= length <= max_frame_bytes - 4)
    assert isinstance(error, FrameTooLargeError) == (length < 0 or length > max_frame_bytes - 4)
    assert ("too short" in str(error)) == (0 <= length < 4)


@REPEATABLE
@given(COMMANDS)
def test_command_round_trips_through_every_serialisation(command: RemotingCommand) -> None:
    (frame,), error = FrameSplitter().split(command.encode())
    assert error is None
    assert fields_of(RemotingCommand.decode(frame)) == fields_of(command)


@REPEATABLE
@given(COMMANDS)
def test_encoding_is_stable(command: RemotingCommand) -> None:
    encoded = command.encode()
    assert RemotingCommand.decode(encoded[4:]).encode() == encoded
    assert command.encode_prefix(len(command.body)) + bytes(command.body) == encoded


@REPEATABLE
@given(COMMANDS, st.data())
def test_truncated_frame_fails_or_has_shorter_body(command: RemotingCommand, data: st.DataObject) -> None:
    frame = command.encode()[4:]
    cut = data.draw(st.integers(0, len(frame) - 1))
    try:
        decoded = RemotingCommand.decode(frame[:cut])
    except ProtocolError:
        assert cut < len(frame) - len(command.body)
    else:
        assert fields_of(decoded) | {"body": command.body} == fields_of(command)
        assert bytes(command.body).startswith(decoded.body)
