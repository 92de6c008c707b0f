"""Compression of message bodies: by clients only; the broker stores bodies as they arrive.

zlib is always available; LZ4 (frame format) and Zstandard need ``pip install 'triomq[compression]'``.
Decompression is bounded, so that a small message cannot expand to gigabytes.

Source: wire.md 10.6; store.md 2.5.
"""

import zlib
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from triomq.protocol.codes import COMPRESSION_TYPE_MASK, MessageSysFlag
from triomq.protocol.errors import ProtocolError, UnsupportedCompressionError

DEFAULT_LEVEL: Final = 5  # Java's default
#: Limit of a decompressed body: four times what producers and brokers accept by default, and as much as a frame may be.
DEFAULT_MAX_BODY_BYTES: Final = 16 * 1024**2

ZLIB: Final = int(MessageSysFlag.COMPRESSION_ZLIB)
LZ4: Final = int(MessageSysFlag.COMPRESSION_LZ4)
ZSTD: Final = int(MessageSysFlag.COMPRESSION_ZSTD)
_MIN_WINDOW_BYTES: Final = 8 * 1024**2  # every Zstandard reader must support it
_ZSTD_STEP_BYTES: Final = 512  # 4 bytes can become 128 KiB, and the package has no limit: 16 MiB a step
_COMPRESSED: Final = int(MessageSysFlag.COMPRESSED)


def compress(body: bytes, kind: int = ZLIB, level: int = DEFAULT_LEVEL) -> bytes:
    """Return ``body`` compressed; the sender sets ``kind | MessageSysFlag.COMPRESSED`` in its sysFlag.

    Raises:
        UnsupportedCompressionError: the package for ``kind`` is not installed, or the kind is unknown.
    """
    output: bytes
    if kind == ZLIB:
        output = zlib.compress(body, level)
    elif kind == LZ4:
        output = _import("LZ4", "lz4.frame").compress(body, compression_level=level)
    elif kind == ZSTD:
        output = _import("Zstandard", "zstandard").ZstdCompressor(level=level).compress(body)
    else:
        raise UnsupportedCompressionError(f"compression type {kind:#x}: unknown")
    return output


def decompress(body: bytes, sys_flag: int, max_output_bytes: int = DEFAULT_MAX_BODY_BYTES) -> bytes:
    """Return the body as its producer passed it; ``body`` itself if ``sys_flag`` does not mark it as compressed.

    Raises:
        ProtocolError: damaged or truncated data, more than ``max_output_bytes``, or an unknown type.
        UnsupportedCompressionError: the package for this type is not installed.
    """
    if not sys_flag & _COMPRESSED:
        return body
    kind = sys_flag & COMPRESSION_TYPE_MASK
    if kind in (0, ZLIB):  # up to 4.9.3, and in Go, no type means zlib
        return inflate(body, max_output_bytes)
    if kind == LZ4:
        stream = _import("LZ4", "lz4.frame").LZ4FrameDecompressor()
        return _decompress("LZ4", stream, body, max_output_bytes)
    if kind == ZSTD:
        return _decompress_zstd(body, max_output_bytes)
    raise ProtocolError(f"compression type {kind:#x}: unknown")


def inflate(body: bytes, max_output_bytes: int) -> bytes:
    """Decompress one zlib stream.

    Raises:
        ProtocolError: damaged or truncated, or more than ``max_output_bytes``.
    """
    return _decompress("zlib", zlib.decompressobj(), body, max_output_bytes)


def _decompress(kind: str, stream: Any, body: bytes, max_output_bytes: int) -> bytes:
    try:
        output = stream.decompress(body, max_output_bytes + 1)
    except (zlib.error, RuntimeError, EOFError, ValueError) as exc:  # lz4 has no error class
        raise ProtocolError(f"{kind} body of {len(body)} bytes: {exc}") from exc
    return _complete(kind, output, stream.eof, max_output_bytes)


def _decompress_zstd(body: bytes, max_output_bytes: int) -> bytes:
    zstandard = _import("Zstandard", "zstandard")
    # The window is allocated at once in the size that the frame claims: bound it like the output.
    window_bytes = max(_MIN_WINDOW_BYTES, max_output_bytes)
    stream = zstandard.ZstdDecompressor(max_window_size=window_bytes).decompressobj()
    output = bytearray()
    try:
        for start in range(0, len(body), _ZSTD_STEP_BYTES):
            output += stream.decompress(body[start : start + _ZSTD_STEP_BYTES])
            if stream.eof or len(output) > max_output_bytes:
                break
    except zstandard.ZstdError as exc:
        raise ProtocolError(f"Zstandard body of {len(body)} bytes: {exc}") from exc
    return _complete("Zstandard", bytes(output), stream.eof, max_output_bytes)


def _complete(kind: str, output: bytes, at_end: bool, max_output_bytes: int) -> bytes:
    if len(output) > max_output_bytes:
        raise ProtocolError(f"{kind} body: more than {max_output_bytes} bytes when decompressed (max_body_bytes)")
    if not at_end:
        raise ProtocolError(f"{kind} body: truncated")
    return output


def _import(kind: str, module: str) -> ModuleType:
    """Import an optional package when a message needs it."""
    try:
        return import_module(module)
    except ImportError as exc:
        raise UnsupportedCompressionError(f"{kind} bodies need a package: pip install 'triomq[compression]'") from exc
