"""Settings as Java properties text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.protocol.bodies.properties_text import properties_text, read_properties


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
