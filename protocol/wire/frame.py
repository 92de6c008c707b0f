"""Frames: a byte stream divided into ``length | header word | header | body``.

Rules: a length is checked before anything waits for it or is allocated; the work is linear in the received bytes,
however they were divided; a splitter stays broken after a bad length, because nothing after it can be trusted; the
builders reject frames that the other side's readers would reject.

Fresh memory costs a page fault for every 4 KiB, which is more than copying its bytes, and assembling a long frame from
many reads copies it several times.  So a ``FrameReceiver`` passes short reads through a ``FrameSplitter``, and receives
a long frame in place until it is complete.

Source: wire.md 1.
"""

from io import BytesIO
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct
from typing import Final, Self, TypeAlias

from triomq.protocol.errors import FrameTooLargeError, ProtocolError

#: Java's ``com.rocketmq.remoting.frameMaxLength``: the whole frame with its length field.
MAX_FRAME_BYTES: Final = 16 * 1024**2

#: Our own limit: the largest legal header has about 200 KiB (32767 bytes of properties, all escaped in JSON), and a
#: header of brackets only takes 60 times its length in memory once parsed.
MAX_HEADER_BYTES: Final = 1024**2

#: A frame above this that comes in parts is put where it stays.
LONG_FRAME_BYTES: Final = 256 * 1024

#: Without its length field; a long one may be a view of :class:`FrameMemory`.
Frame: TypeAlias = bytes | memoryview


class FrameMemory(mmap):
    """Holds one long frame, length field included.

    A copy of 16 MiB, with the page faults of fresh memory, holds an event loop up for 5 to 15 ms, and a buffer that
    grows is copied too now and then.  Here a page becomes memory when its bytes come, and nothing is copied.
    """

    __slots__ = ()

    def __new__(cls, size_bytes: int) -> Self:
        """Take address space for a frame."""
        return super().__new__(cls, -1, size_bytes, flags=MAP_PRIVATE | MAP_ANONYMOUS)


LENGTH: Final = Struct(">i")
PREFIX: Final = Struct(">iI")  # length, then serialize type in the top byte and header length in the rest
LENGTH_BYTES: Final = 4
_MIN_LENGTH: Final = 4  # the header word
_MAX_LENGTH: Final = MAX_FRAME_BYTES - LENGTH_BYTES


class FrameSplitter:
    """Divides received bytes into frames, sans-I/O: call :meth:`split` with the bytes of each read.

    The buffer never holds more than one incomplete frame and one read.

    Attributes:
        pending_bytes: received bytes of an incomplete frame.
        needed_bytes: size of that frame with its length field, once this is known.
    """

    __slots__ = ("_broken", "_buffer", "_long", "_max_frame_bytes", "needed_bytes", "pending_bytes")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._buffer = BytesIO()
        self._long: FrameMemory | None = None  # instead of the buffer
        self.needed_bytes = LENGTH_BYTES
        self._max_frame_bytes = max_frame_bytes
        self._broken: ProtocolError | None = None
        self.pending_bytes = 0

    def take_pending(self) -> bytes:
        """Return and forget the bytes of an incomplete frame, which the caller completes itself."""
        begin = self._buffer.getvalue() if self._long is None else self._long[: self.pending_bytes]
        self.clear()
        return begin

    def clear(self) -> None:
        """Forget the bytes of an incomplete frame: the connection is closed."""
        self._buffer = BytesIO()
        self._long = None
        self.needed_bytes = LENGTH_BYTES
        self.pending_bytes = 0

    def split(self, data: bytes | bytearray | memoryview) -> tuple[list[Frame], ProtocolError | None]:
        """Add received bytes; return all frames they complete, without their length fields, and the error.

        An error follows the returned frames in the stream: answer those, then close.  It is a
        :class:`FrameTooLargeError` for a length field that is negative or above the limit, and a plain
        :class:`ProtocolError` for one too short to hold the header word.  Later calls return it again.
        """
        if self._broken is not None:
            return [], self._broken
        if self._long is not None:
            return self._fill(self._long, memoryview(data))
        if self.pending_bytes:
            self.pending_bytes += self._buffer.write(data)
            if self.pending_bytes < self.needed_bytes:
                return [], None
            source = self._buffer.getvalue()
            self.clear()
        else:
            source = bytes(data)
        frames: list[Frame] = []
        end = len(source)
        position = 0
        limit = self._max_frame_bytes - LENGTH_BYTES
        self.needed_bytes = LENGTH_BYTES
        while end - position >= LENGTH_BYTES:
            (length,) = LENGTH.unpack_from(source, position)
            if not _MIN_LENGTH <= length <= limit:
                self._broken = self._bad_length(length)
                return frames, self._broken
            following = position + LENGTH_BYTES + length
            if following > end:
                self.needed_bytes = LENGTH_BYTES + length
                break
            frames.append(source[position + LENGTH_BYTES : following])
            position = following
        if position < end:
            rest = memoryview(source)[position:]
            if self.needed_bytes > LONG_FRAME_BYTES:
                self._long = FrameMemory(self.needed_bytes)
                self._fill(self._long, rest)
            else:
                self.pending_bytes = self._buffer.write(rest)
        return frames, None

    def _fill(self, memory: FrameMemory, data: memoryview) -> tuple[list[Frame], ProtocolError | None]:
        """Continue a long frame; return what ``split`` returns."""
        begin = self.pending_bytes
        part = data[: len(memory) - begin]
        self.pending_bytes = end = begin + len(part)
        memory[begin:end] = part
        if end < len(memory):
            return [], None
        self.clear()
        frames, error = self.split(data[len(part) :])
        return [memoryview(memory)[LENGTH_BYTES:], *frames], error

    def _bad_length(self, length: int) -> ProtocolError:
        if 0 <= length < _MIN_LENGTH:
            return ProtocolError(f"frame length {length} is too short for the header word of 4 bytes")
        return FrameTooLargeError(
            f"frame length {length} is not within {_MIN_LENGTH}..{self._max_frame_bytes - LENGTH_BYTES}: "
            f"{explain_first_bytes(LENGTH.pack(length))}"
        )


#: First bytes of other protocols whose clients connect to a broker's port by mistake.
_KNOWN_PROTOCOLS: Final = (
    ((b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI"), "an HTTP client"),
    (b"PRI ", "a gRPC or HTTP/2 client (RocketMQ 5.x gRPC clients need a proxy; triomq speaks Remoting)"),
    (b"HTTP", "an HTTP server"),
    (b"SSH-", "an SSH peer"),
    (b"\x16\x03", "a TLS client (TLS is not enabled here)"),
    (b"\x15\x03", "a TLS server (connect with TLS)"),
    (b"AMQP", "an AMQP client"),
    (b"*", "a Redis client"),
)


def explain_first_bytes(start: bytes) -> str:
    """Return a guess, from its first bytes, at what a peer is that does not speak Remoting."""
    for prefixes, name in _KNOWN_PROTOCOLS:
        if start.startswith(prefixes):
            return f"the peer looks like {name}"
    return "the peer does not speak RocketMQ Remoting, or the stream is damaged"


def build_frame(serialize_type: int, header: bytes, body: bytes | memoryview = b"") -> bytes:
    """Return a whole frame, length field included.

    Send a large body separately, after :func:`frame_prefix`.

    Raises:
        FrameTooLargeError: as for :func:`frame_prefix`.
    """
    prefix = frame_prefix(serialize_type, header, len(body))
    return b"".join((prefix, body)) if body else prefix


def frame_prefix(serialize_type: int, header: bytes, body_length: int) -> bytes:
    """Return the part of a frame before a body of ``body_length`` bytes.

    Raises:
        FrameTooLargeError: the header is above :data:`MAX_HEADER_BYTES`, or the frame above :data:`MAX_FRAME_BYTES`.
    """
    header_length = len(header)
    length = _MIN_LENGTH + header_length + body_length
    if header_length > MAX_HEADER_BYTES or length > _MAX_LENGTH:
        raise FrameTooLargeError(
            f"frame of {length} bytes with a header of {header_length}: the limits are {_MAX_LENGTH} "
            f"and {MAX_HEADER_BYTES}"
        )
    return PREFIX.pack(length, serialize_type << 24 | header_length) + header


#: A frame that lacks more than this is received in place.
LONG_BYTES: Final = 64 * 1024
_LARGE_READ_BYTES: Final = 1024**2
_MAX_KEPT_BYTES: Final = 2 * 1024**2


class FrameReceiver:
    """Cut received bytes into frames, sans-I/O: receive into :meth:`room`, then call :meth:`received`.

    The buffer never holds more than one long frame, or one read of up to 1 MiB; one above 2 MiB is not kept.
    """

    __slots__ = ("_buffer", "_filled", "_frame_bytes", "_read_bytes", "_splitter")

    def __init__(self, max_frame_bytes: int) -> None:
        """Create a receiver; the limit includes the length field."""
        self._splitter = FrameSplitter(max_frame_bytes)
        self._buffer = memoryview(bytearray(LONG_BYTES))
        self._read_bytes = LONG_BYTES
        self._frame_bytes = 0  # size of the long frame that is received in place
        self._filled = 0  # bytes of it received so far

    def room(self) -> memoryview:
        """Return the memory for the next read; frames returned before become invalid."""
        if self._frame_bytes:
            return self._buffer[self._filled : self._frame_bytes]
        if len(self._buffer) < self._read_bytes or len(self._buffer) > _MAX_KEPT_BYTES:
            self._buffer = memoryview(bytearray(self._read_bytes))
        return self._buffer[: self._read_bytes]

    def received(self, count: int) -> tuple[list[Frame], ProtocolError | None]:
        """Return the frames that the first ``count`` bytes of :meth:`room` complete, and the error.

        As :meth:`FrameSplitter.split`; a view of other than :class:`FrameMemory` is valid until :meth:`room` is called.
        """
        if self._frame_bytes:
            self._filled += count
            if self._filled < self._frame_bytes:
                return [], None
            frame = self._buffer[LENGTH_BYTES : self._frame_bytes]
            self._frame_bytes = 0
            return [frame], None
        frames, error = self._splitter.split(self._buffer[:count])
        self._read_bytes = _LARGE_READ_BYTES if count == self._read_bytes else LONG_BYTES
        if self._splitter.needed_bytes - self._splitter.pending_bytes > LONG_BYTES:
            self._frame_bytes = self._splitter.needed_bytes
            begin = self._splitter.take_pending()
            self._filled = len(begin)
            if len(self._buffer) < self._frame_bytes:
                self._buffer = memoryview(bytearray(self._frame_bytes))
            self._buffer[: self._filled] = begin
        return frames, error
