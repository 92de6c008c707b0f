"""String.hashCode, tag codes, and the text of properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.protocol.java import java_hash, properties_text, read_properties, tags_code


def slow_hash(text: str) -> int:
    """The definition, one UTF-16 unit after the other."""
    hashed = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        hashed = (31 * hashed + int.from_bytes(units[position : position + 2])) % 2**32
    return hashed - 2**32 if hashed >= 2**31 else hashed


@pytest.mark.parametrize(
    ("text", "hashed"),
    [
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("中文", 646394),
        ("polygenelubricants", -(2**31)),
        ("", 0),
        ("\U0001f600", 1772899),  # two units: d83d de00
        ("\ud83d", 0xD83D),
    ],
)
def test_hash_equals_what_java_computes(text: str, hashed: int) -> None:
    assert java_hash(text) == hashed


ASCII = st.text(st.characters(max_codepoint=127), max_size=300) | st.integers(1, 200).map(
    lambda length: "\x7f" * length
)


@given(st.text() | ASCII)
def test_hash_of_any_text_follows_the_definition(text: str) -> None:
    assert java_hash(text) == slow_hash(text)


def test_code_of_long_tags_is_their_hash_too() -> None:
    assert tags_code("T" * 1000) == slow_hash("T" * 1000)
    assert tags_code("TagA") == tags_code("TagA") == 2598919


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        (" leading", "\\ leading"),
        ("C:\\store", "C:\\\\store"),
        ("two\nlines\r\t", "two\\nlines\\r\\t"),
        ("ü", "\\u00FC"),
        ("\N{GRINNING FACE}", "\\uD83D\\uDE00"),
        ("a=b:c#d!", "a=b:c#d!"),
        ("\udcff", "\\uDCFF"),
        ("\x00", "\\u0000"),
    ],
)
def test_values_are_escaped_as_java_reads_them(value: str, text: str) -> None:
    assert properties_text({"key": value}) == f"key={text}\n"


def test_lines_are_sorted_and_each_ends() -> None:
    assert properties_text({"b": "2", "a": "1"}) == "a=1\nb=2\n"


@given(st.dictionaries(st.from_regex(r"[a-zA-Z.]+", fullmatch=True), st.text()))
def test_what_was_written_is_read_back(settings: dict[str, str]) -> None:
    assert read_properties(properties_text(settings) + "# no setting\n") == settings
