"""compression: bodies of clients."""

import sys

import pytest

from triomq.protocol.errors import ProtocolError, UnsupportedCompressionError
from triomq.protocol.record.compression import LZ4, ZLIB, ZSTD, compress, decompress

KINDS = [ZLIB, LZ4, ZSTD]
COMPRESSED = 1


@pytest.fixture(params=KINDS, ids=["zlib", "lz4", "zstd"])
def kind(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    if number == LZ4:
        pytest.importorskip("lz4.frame")
    if number == ZSTD:
        pytest.importorskip("zstandard")
    return number


def test_body_that_not_compressed_comes_back_as() -> None:
    body = b"plain"
    assert decompress(body, 0x300) is body


@pytest.mark.parametrize("size", [0, 1, 4096, 300_000])
def test_body_survives_the_round_trip(kind: int, size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    assert decompress(compress(body[:size], kind), kind | COMPRESSED) == body[:size]


def test_zlib_is_meant_where_no_type_is_given() -> None:
    packed = compress(b"hello" * 100)
    assert packed[:2] == b"\x78\x5e"  # level 5, as Java
    assert decompress(packed, COMPRESSED) == b"hello" * 100


def test_truncated_body_is_a_protocol_error(kind: int) -> None:
    packed = compress(bytes(range(256)) * 2, kind)
    for length in range(len(packed)):
        with pytest.raises(ProtocolError):
            decompress(packed[:length], kind | COMPRESSED)


def test_bomb_is_refused_at_the_limit(kind: int) -> None:
    packed = compress(bytes(200 * 1024**2), kind)
    assert len(packed) < 1024**2
    with pytest.raises(ProtocolError, match="more than"):
        decompress(packed, kind | COMPRESSED)


def test_unknown_type_is_refused() -> None:
    with pytest.raises(ProtocolError, match="0x400"):  # no package would help
        decompress(b"", 0x401)
    with pytest.raises(UnsupportedCompressionError, match="0x0"):
        compress(b"", 0)


@pytest.mark.parametrize(("number", "module"), [(LZ4, "lz4.frame"), (ZSTD, "zstandard")])
def test_missing_package_is_named_with_what_to_install(
    number: int, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnsupportedCompressionError, match=r"pip install 'triomq\[compression\]'"):
        compress(b"x", number)
    with pytest.raises(UnsupportedCompressionError, match=r"pip install 'triomq\[compression\]'"):
        decompress(b"x", number | COMPRESSED)


def test_what_follows_stream_is_ignored_as_in_java(kind: int) -> None:
    assert decompress(compress(b"hello", kind) + b"more", kind | COMPRESSED) == b"hello"
