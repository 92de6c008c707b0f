"""RemotingCommand: one request or response, whatever its header serialisation.

Source: wire.md 2, RemotingCommand.java.
"""

import struct
from collections.abc import Mapping
from typing import Any, Final, Self

from triomq.protocol.codes import VERSION, CommandFlag, LanguageCode, ResponseCode, SerializeType
from triomq.protocol.errors import FrameTooLargeError, ProtocolError
from triomq.protocol.wire.frame import MAX_HEADER_BYTES, build_frame, frame_prefix
from triomq.protocol.wire.serialization import decode_header, encode_header, fill_from_json

_HEADER_WORD: Final = struct.Struct(">I")
_HEADER_WORD_BYTES: Final = 4
_RESPONSE: Final = int(CommandFlag.RESPONSE)
_ONEWAY: Final = int(CommandFlag.ONEWAY)
_JSON: Final = int(SerializeType.JSON)
_PYTHON: Final = int(LanguageCode.PYTHON)


class RemotingCommand:
    """A request or a response.  Cheap on purpose: one is made for each frame.

    Attributes:
        code: :class:`RequestCode` or :class:`ResponseCode` number, also an unknown one.
        opaque: correlation number, chosen by the requester, any int32.
        flag: bits of :class:`CommandFlag`.
        language: number of a :class:`LanguageCode`, -1 if the peer named one we do not know.
        version: the sender's version ordinal (wire.md 2.5).
        remark: human text, ``None`` if absent.
        ext_fields: the custom header; every value is text.  Treat it as read-only.
        body: opaque bytes, empty if there is none.
        serialize_type: how the header was, or shall be, written.
    """

    __slots__ = (
        "body",
        "code",
        "ext_fields",
        "flag",
        "language",
        "opaque",
        "remark",
        "serialize_type",
        "version",
    )

    def __init__(
        self,
        code: int,
        opaque: int = 0,
        flag: int = 0,
        ext_fields: dict[str, str] | None = None,
        body: bytes | memoryview = b"",
        remark: str | None = None,
        serialize_type: int = _JSON,
        language: int = _PYTHON,
        version: int = VERSION,
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.flag = flag
        self.ext_fields = {} if ext_fields is None else ext_fields
        self.body = body
        self.remark = remark
        self.serialize_type = serialize_type
        self.language = language
        self.version = version

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        remark = f" remark={self.remark!r}" if self.remark else ""
        return (
            f"<{kind} code={self.code} opaque={self.opaque} ext={self.ext_fields}{remark} body={len(self.body)} bytes>"
        )

    @property
    def is_response(self) -> bool:
        """Whether this answers a request of ours."""
        return bool(self.flag & _RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender wants no answer, not even an error."""
        return bool(self.flag & _ONEWAY)

    def reply(
        self,
        code: int = ResponseCode.SUCCESS,
        ext_fields: Mapping[str, str] | None = None,
        body: bytes | memoryview = b"",
        remark: str | None = None,
    ) -> "RemotingCommand":
        """Make the response to this request: same opaque, same header serialisation (wire.md 2.6)."""
        fields = ext_fields if ext_fields is None or isinstance(ext_fields, dict) else dict(ext_fields)
        return RemotingCommand(code, self.opaque, _RESPONSE, fields, body, remark, self.serialize_type)

    def encode(self) -> bytes:
        """Return the whole frame.

        Raises:
            FrameTooLargeError: header or frame are above the limits of :mod:`triomq.protocol.wire.frame`.
            ProtocolError: a value does not fit the header serialisation.
        """
        return build_frame(self.serialize_type, encode_header(self), self.body)

    def encode_prefix(self, body_length: int) -> bytes:
        """Return the frame up to its body; the caller sends ``body_length`` bytes after it.

        Raises:
            ProtocolError: as :meth:`encode`.
        """
        return frame_prefix(self.serialize_type, encode_header(self), body_length)

    @classmethod
    def decode(cls, frame: bytes | memoryview) -> Self:
        """Read a frame as :meth:`FrameSplitter.split` returns it (without the length field); a view is copied.

        Raises:
            FrameTooLargeError: the header is above :data:`~triomq.protocol.wire.frame.MAX_HEADER_BYTES`.
            ProtocolError: header length beyond the frame, unknown serialisation, unreadable header.
        """
        try:
            (word,) = _HEADER_WORD.unpack_from(frame)
        except struct.error:
            raise ProtocolError(f"frame of {len(frame)} bytes is too short for its header word") from None
        header_length = word & 0xFFFFFF
        end = _HEADER_WORD_BYTES + header_length
        if end > len(frame):
            raise ProtocolError(
                f"header of {header_length} bytes in a frame with {len(frame) - _HEADER_WORD_BYTES} after its head"
            )
        if header_length > MAX_HEADER_BYTES:
            raise FrameTooLargeError(f"header of {header_length} bytes, the limit is {MAX_HEADER_BYTES}")
        command = cls.__new__(cls)
        if isinstance(frame, memoryview):
            decode_header(command, word >> 24, bytes(frame[_HEADER_WORD_BYTES:end]))
            command.body = bytes(frame[end:])
        else:
            decode_header(command, word >> 24, frame[_HEADER_WORD_BYTES:end])
            command.body = frame[end:]
        return command

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], body: bytes) -> Self:
        """Make the command of a frame whose JSON header has been parsed already.

        Raises:
            ProtocolError: a field cannot be read.
        """
        command = cls.__new__(cls)
        fill_from_json(command, fields)
        command.body = body
        return command
