"""Hostile bytes: whatever arrives becomes a command or a ProtocolError, in bounded time and memory, and nothing else.

Seeded, so that each run tries the same; to search on, change SEED and COUNT.
"""

import random
import time
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from triomq.protocol.codes import SerializeType
from triomq.protocol.errors import ProtocolError
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import Frame, FrameSplitter

SEED = 20_240_817
COUNT = 15_000

SEND = {
    "a": "PG", "b": "TopicTest", "c": "TBW102", "d": "4", "e": "-1", "f": "0", "g": "1700000000000", "h": "0",
    "i": "TAGS\x01TagA\x02KEYS\x01\u4e2d\u6587", "k": "false", "n": "broker-a",
}  # fmt: skip
COMMANDS = [
    RemotingCommand(310, 2, 0, SEND, b"hi"),
    RemotingCommand(105, -1, 0, {"topic": "T"}),
    RemotingCommand(17, 2**31 - 1, 1, remark='no "route"\n\u00e9\U0001f600'),
    RemotingCommand(34, 0, 2, body=b'{"clientID":"x"}'),
]
#: Frames without length field, as the splitter returns them; the last is what a tolerant reader of JSON meets.
FRAMES = [
    RemotingCommand(one.code, one.opaque, one.flag, one.ext_fields, one.body, one.remark, serialize_type=kind).encode()[
        4:
    ]
    for one in COMMANDS
    for kind in SerializeType
]
ODD = (
    b'{"code":"11","flag":null,"language":9,"remark":{"a":[1.5]},"extFields":{"n":1,"t":true,"z":null,"l":[{"x":[]}]}}'
)
FRAMES.append(len(ODD).to_bytes(4, "big") + ODD)

#: Numbers at which length fields and types break.
EDGES = [0, 1, 2, 3, 4, 127, 128, 255, 256, 32_767, 32_768, 65_535, 2**24 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1]


def check(frame: Frame) -> RemotingCommand | None:
    """Decode; return the command if it is one.  Any error but ProtocolError leaves the test."""
    try:
        command = RemotingCommand.decode(frame)
    except ProtocolError as exc:
        message = str(exc)
        assert message
        return None
    for name in ("code", "opaque", "flag", "version", "language"):
        number = getattr(command, name)
        assert type(number) is int
        assert -(2**31) <= number < 2**31
    assert type(command.body) is bytes
    assert command.remark is None or type(command.remark) is str
    assert {type(text) for pair in command.ext_fields.items() for text in pair} <= {str}
    return command


def check_deeply(frame: bytes) -> None:
    """Check; what could be read can also be written and read again."""
    command = check(frame)
    if command is None:
        return
    again = check(command.encode()[4:])
    assert again is not None
    assert (again.code, again.opaque, again.ext_fields, again.body) == (
        command.code,
        command.opaque,
        command.ext_fields,
        command.body,
    )


# --- ways to spoil a frame ---


def flip_bits(rng: random.Random, frame: bytearray) -> None:
    for _ in range(rng.randint(1, 4)):
        frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)


def write_an_edge(rng: random.Random, frame: bytearray) -> None:
    width = rng.choice([1, 2, 3, 4])
    position = rng.randrange(len(frame))
    frame[position : position + width] = (rng.choice(EDGES) % 256**width).to_bytes(width, "big")


def cut(rng: random.Random, frame: bytearray) -> None:
    del frame[rng.randrange(len(frame)) :]


def cut_out(rng: random.Random, frame: bytearray) -> None:
    start = rng.randrange(len(frame))
    del frame[start : start + rng.randint(1, 8)]


def insert_garbage(rng: random.Random, frame: bytearray) -> None:
    position = rng.randrange(len(frame))
    frame[position:position] = rng.randbytes(rng.randint(1, 12))


def repeat_a_part(rng: random.Random, frame: bytearray) -> None:
    start = rng.randrange(len(frame))
    part = frame[start : start + rng.randint(1, 20)]
    frame[start:start] = part * rng.randint(1, 5)


def splice(rng: random.Random, frame: bytearray) -> None:
    other = rng.choice(FRAMES)
    frame[rng.randrange(len(frame)) :] = other[rng.randrange(len(other)) :]


def change_the_type(rng: random.Random, frame: bytearray) -> None:
    frame[0] = rng.choice([0, 1, 2, 77, 255])


def replace_the_header(rng: random.Random, frame: bytearray) -> None:
    """Garbage in a frame that is right: the decoders themselves get to see it."""
    header = rng.randbytes(rng.randint(0, 64))
    frame[:] = bytes([rng.choice([0, 1, 77])]) + len(header).to_bytes(3, "big") + header


MUTATIONS: list[Callable[[random.Random, bytearray], None]] = [
    flip_bits,
    write_an_edge,
    cut,
    cut_out,
    insert_garbage,
    repeat_a_part,
    splice,
    change_the_type,
    replace_the_header,
]


def fix_the_header_length(frame: bytearray) -> None:
    """Set it to all of the frame, or most mutations would end at the first check."""
    if len(frame) >= 4:
        frame[1:4] = (len(frame) - 4).to_bytes(3, "big")


def spoiled_frames(count: int) -> Iterator[bytes]:
    rng = random.Random(SEED)
    for _ in range(count):
        frame = bytearray(rng.choice(FRAMES))
        for mutate in rng.sample(MUTATIONS, rng.choice([1, 1, 2, 3])):
            mutate(rng, frame)
            if not frame:
                break
        if rng.random() < 0.5:
            fix_the_header_length(frame)
        yield bytes(frame)


# --- tests ---


def test_the_frames_to_spoil_are_good() -> None:
    assert all(check(frame) for frame in FRAMES)


def test_spoiled_frames_are_commands_or_protocol_errors() -> None:
    began = time.process_time()
    for frame in spoiled_frames(COUNT):
        check_deeply(frame)
    assert time.process_time() - began < 30


@pytest.mark.parametrize("frame", FRAMES)
def test_single_bit_flip_yields_command_or_protocol_error(frame: bytes) -> None:
    for index in range(len(frame) * 8):
        spoiled = bytearray(frame)
        spoiled[index // 8] ^= 1 << index % 8
        check_deeply(bytes(spoiled))


@pytest.mark.parametrize("frame", FRAMES)
def test_truncated_frame_is_command_or_protocol_error(frame: bytes) -> None:
    for end in range(len(frame)):
        check_deeply(frame[:end])
        shorter = bytearray(frame[:end])
        fix_the_header_length(shorter)
        check_deeply(bytes(shorter))


def test_corrupt_frames_use_memory_in_proportion_to_length() -> None:
    """What a length field claims is not allocated: no frame here has a kilobyte, many claim gigabytes."""
    frames = list(spoiled_frames(COUNT // 5))
    most_bytes = 0
    tracemalloc.start()
    try:
        for frame in frames:  # each alone: what earlier ones left to the garbage collector does not count
            before_bytes, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            check(frame)
            _, peak_bytes = tracemalloc.get_traced_memory()
            most_bytes = max(most_bytes, peak_bytes - before_bytes)
    finally:
        tracemalloc.stop()
    assert max(map(len, frames)) < 1024
    assert most_bytes < 64 * 1024


def test_damaged_stream_is_split_or_rejected() -> None:
    rng = random.Random(SEED)
    for _ in range(COUNT // 10):
        stream = bytearray()
        for frame in rng.choices(FRAMES, k=3):
            stream += len(frame).to_bytes(4, "big") + frame
        rng.choice([flip_bits, write_an_edge, cut, cut_out, insert_garbage])(rng, stream)
        splitter = FrameSplitter()
        position, error = 0, None
        while position < len(stream):
            size = rng.randint(1, 100)
            frames, error = splitter.split(stream[position : position + size])
            for found in frames:
                check(found)
            position += size
        assert error is None or splitter.pending_bytes == 0
        assert splitter.pending_bytes <= len(stream)
