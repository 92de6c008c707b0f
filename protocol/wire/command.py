"""RemotingCommand: one request or response, in any header format.

Source: wire.md 2, RemotingCommand.java.
"""

import struct
from collections.abc import Mapping
from typing import Any, Final, Self

from triomq.protocol.codes import VERSION, CommandFlag, LanguageCode, ResponseCode, SerializeType
from triomq.protocol.errors import FrameTooLargeError, ProtocolError
from triomq.protocol.wire.frame import MAX_HEADER_BYTES, Frame, FrameMemory, build_frame, frame_prefix
from triomq.protocol.wire.header_formats import DECODERS, ENCODERS, INT32_MAX, INT32_MIN, read_fields

_HEADER_WORD: Final = struct.Struct(">I")
_HEADER_WORD_BYTES: Final = 4
_RESPONSE: Final = int(CommandFlag.RESPONSE)
_ONEWAY: Final = int(CommandFlag.ONEWAY)
_JSON: Final = int(SerializeType.JSON)
_PYTHON: Final = int(LanguageCode.PYTHON)
_SECRET: Final = frozenset(("Signature", "SecurityToken", "secretKey"))  # never shown


class RemotingCommand:
    """A request or a response; cheap, because one is made for each frame.

    Attributes:
        code: :class:`RequestCode` or :class:`ResponseCode` number, possibly an unknown one.
        opaque: correlation number, chosen by the requester, any int32.
        flag: bits of :class:`CommandFlag`.
        language: number of a :class:`LanguageCode`, -1 for an unknown one.
        version: the sender's version ordinal (wire.md 2.5).
        remark: text for people, ``None`` if absent.
        ext_fields: the custom header; every value is text.  Treat it as read-only.
        body: opaque bytes, perhaps none.
        serialize_type: number of the header format that it came in or will be sent in.
        account: the access key that a broker found to have signed it; "": none was needed.
    """

    __slots__ = (
        "account",
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
    ) -> None:
        """Create a command of ours; ``language`` and ``version`` can be set afterwards."""
        self.code = code
        self.opaque = opaque
        self.flag = flag
        self.ext_fields = {} if ext_fields is None else ext_fields
        self.body = body
        self.remark = remark
        self.serialize_type = serialize_type
        self.language = _PYTHON
        self.version = VERSION
        self.account = ""

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        remark = f" remark={self.remark!r}" if self.remark else ""
        fields = {name: "..." if name in _SECRET else value for name, value in self.ext_fields.items()}
        return f"<{kind} code={self.code} opaque={self.opaque} ext={fields}{remark} body={len(self.body)} bytes>"

    @property
    def is_response(self) -> bool:
        """Whether this is the answer to a request."""
        return bool(self.flag & _RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender expects no answer, not even an error."""
        return bool(self.flag & _ONEWAY)

    @property
    def content_bytes(self) -> int:
        """About what :meth:`strip` frees."""
        return len(self.body) + sum(len(name) + len(value) for name, value in self.ext_fields.items())

    def strip(self) -> None:
        """Forget what only a processor needs; :meth:`reply` still works."""
        self.ext_fields = {}
        self.body = b""

    def reply(
        self,
        code: int = ResponseCode.SUCCESS,
        ext_fields: Mapping[str, str] | None = None,
        body: bytes | memoryview = b"",
        remark: str | None = None,
    ) -> "RemotingCommand":
        """Return a response to this request: same opaque, same header format (wire.md 2.6)."""
        fields = ext_fields if ext_fields is None or isinstance(ext_fields, dict) else dict(ext_fields)
        return RemotingCommand(code, self.opaque, _RESPONSE, fields, body, remark, self.serialize_type)

    def encode(self) -> bytes:
        """Return the whole frame.

        Raises:
            FrameTooLargeError: the header or frame is above the limits of :mod:`triomq.protocol.wire.frame`.
            ProtocolError: a value does not fit the header format.
        """
        return build_frame(self.serialize_type, self._encode_header(), self.body)

    def encode_prefix(self, body_length: int) -> bytes:
        """Return the frame up to its body; the caller then sends ``body_length`` bytes.

        Raises:
            ProtocolError: as for :meth:`encode`.
        """
        return frame_prefix(self.serialize_type, self._encode_header(), body_length)

    def _encode_header(self) -> bytes:
        try:
            if not INT32_MIN <= self.opaque <= INT32_MAX:  # the peer would only close the connection
                raise ProtocolError(f"opaque {self.opaque} of code {self.code} is not an int32")
            return ENCODERS[self.serialize_type](
                self.code, self.language, self.version, self.opaque, self.flag, self.remark, self.ext_fields
            )
        except (struct.error, KeyError, TypeError, OverflowError, ValueError, AttributeError) as exc:
            if self.serialize_type not in ENCODERS:
                raise _unknown_format(self.serialize_type) from None
            raise ProtocolError(f"header of code {self.code} cannot be written: {exc}") from exc

    @classmethod
    def decode(cls, frame: Frame) -> Self:
        """Read a frame as :meth:`FrameSplitter.split` returns it (without the length field).

        The body of a long frame stays where it is; what other views show may change, so it is copied.

        Raises:
            FrameTooLargeError: the header is above :data:`~triomq.protocol.wire.frame.MAX_HEADER_BYTES`.
            ProtocolError: header length beyond the frame, unknown header format, unreadable header.
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
        header, body = bytes(frame[_HEADER_WORD_BYTES:end]), frame[end:]
        if isinstance(body, memoryview) and not isinstance(body.obj, FrameMemory):
            body = bytes(body)
        decode = DECODERS.get(word >> 24)
        if decode is None:
            raise _unknown_format(word >> 24)
        command = cls.__new__(cls)
        try:
            (
                command.code,
                command.language,
                command.version,
                command.opaque,
                command.flag,
                command.remark,
                command.ext_fields,
            ) = decode(header)
        except (ValueError, TypeError, struct.error, RecursionError) as exc:
            raise ProtocolError(f"header cannot be read: {type(exc).__name__}: {exc}") from exc
        command.serialize_type = word >> 24
        command.body = body
        command.account = ""
        return command

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], body: bytes) -> Self:
        """Create the command of a frame whose JSON header was parsed already.

        Raises:
            ProtocolError: a field cannot be read.
        """
        code, language, version, opaque, flag, remark, ext_fields = read_fields(fields)
        command = cls(code, opaque, flag, ext_fields, body, remark)
        command.language, command.version = language, version
        return command


def _unknown_format(serialize_type: int) -> ProtocolError:
    return ProtocolError(f"unknown header serialisation {serialize_type}")


_PREFIX_BYTES: Final = 8  # of a frame, before its header
_TEMPLATE_OPAQUE: Final = 1_234_567_890  # any number that no field contains


def json_template(fields: Mapping[str, str], remark: str | None = None, code: int = 0) -> bytes:
    """Return the JSON header of a response (``code`` 0: SUCCESS) with placeholders, to be filled by ``%``.

    The values fill the placeholders of ``fields``, then the opaque, then those of ``remark``.
    """
    frame = RemotingCommand(code, _TEMPLATE_OPAQUE, 1, dict(fields), remark=remark).encode()
    return frame[_PREFIX_BYTES:].replace(b'"opaque":%d' % _TEMPLATE_OPAQUE, b'"opaque":%d')
