"""properties: encoded property strings."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from triomq.protocol.errors import ProtocolError
from triomq.protocol.record import layouts
from triomq.protocol.record.properties import (
    append_property,
    decode_properties,
    encode_properties,
    get_property,
    remove_property,
    set_property,
)

TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20)
NAME = TEXT.map(str.encode)
SOUP = st.lists(st.sampled_from([b"\x01", b"\x02", b"A", b"AB", b"\xff", b"TAGS", b"x"]), max_size=30).map(b"".join)


def reference(encoded: bytes) -> dict[bytes, bytes]:
    """The rules of a reader, on bytes."""
    found = {}
    for part in encoded.split(b"\x02"):
        name, _, value = part.partition(b"\x01")
        if name and value:
            found[name] = value
    return found


@given(st.dictionaries(TEXT, TEXT))
def test_properties_survive_the_round_trip(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties


@given(st.dictionaries(TEXT, TEXT, min_size=1))
def test_encoding_agrees_with_its_layout(properties: dict[str, str]) -> None:
    parts = encode_properties(properties).split(b"\x02")
    assert [layouts.PROPERTY.parse(part) for part in parts] == [
        {"name": name.encode(), "value": value.encode()} for name, value in properties.items()
    ]


def test_empty_value_is_not_written() -> None:
    assert encode_properties({"a": "", "b": "1", "c": ""}) == b"b\x011"


@pytest.mark.parametrize(
    "properties",
    [
        {"": "x"},
        {"a\x01": "x"},
        {"a": "x\x02y"},
        {"a\x01b\x02c": "d"},
        {"a": "\ud800"},
        {"a": None},
        {1: "x"},
        {"": ""},
    ],
)
def test_what_cannot_be_encoded_is_a_protocol_error(properties: Mapping[Any, Any]) -> None:
    with pytest.raises(ProtocolError):
        encode_properties(properties)


@pytest.mark.parametrize(
    ("encoded", "properties"),
    [
        (b"", {}),
        (b"\x02\x02\x02", {}),
        (b"\x01v", {}),
        (b"name", {}),
        (b"name\x01", {}),
        (b"a\x011\x02a\x012", {"a": "2"}),
        (b"a\x011\x02a\x01", {"a": "1"}),
        (b"a\x01b\x01c", {"a": "b\x01c"}),
        (b"a\x01\xff", {"a": "�"}),
        (b"a\x01\xc3\x02b\x01c", {"a": "�", "b": "c"}),
    ],
)
def test_reader_follows_javas_rules(encoded: bytes, properties: dict[str, str]) -> None:
    assert decode_properties(encoded) == properties
    assert decode_properties(memoryview(encoded)) == properties


@given(SOUP, st.sampled_from([b"A", b"AB", b"TAGS", b"x"]))
@example(b"TAGS\x01a\x02XTAGS\x01b", b"TAGS")
@example(b"TAGS\x01a\x02TAGS\x01", b"TAGS")
@example(b"XTAGS\x01b\x02TAGS\x01a", b"TAGS")
@example(b"A\x01A\x01A", b"A")
def test_look_up_finds_what_decoding_finds(encoded: bytes, name: bytes) -> None:
    assert get_property(encoded, name) == reference(encoded).get(name)


@given(SOUP, NAME, NAME)
def test_appended_property_wins_and_the_others_stay(encoded: bytes, name: bytes, value: bytes) -> None:
    appended = append_property(encoded, name, value)
    assert reference(appended) == {**reference(encoded), name: value}
    assert not appended.endswith(b"\x02")


def test_append_adds_exactly_one_separator() -> None:
    assert append_property(b"a\x01b", b"c", b"d") == append_property(b"a\x01b\x02", b"c", b"d") == b"a\x01b\x02c\x01d"
    assert append_property(b"", b"c", b"d") == b"c\x01d"


@given(SOUP, st.sampled_from([b"A", b"AB", b"TAGS", b"x"]))
@example(b"A\x01b\x02TAGS\x01x\x02A\x01c\x02A\x01d", b"A")
def test_removed_property_is_gone_and_the_others_stay(encoded: bytes, name: bytes) -> None:
    expected = {other: value for other, value in reference(encoded).items() if other != name}
    assert reference(remove_property(encoded, name)) == expected


@pytest.mark.parametrize(
    ("encoded", "left"),
    [
        (b"WAIT\x01true", b""),
        (b"WAIT\x01true\x02", b""),
        (b"a\x011\x02WAIT\x01true", b"a\x011"),
        (b"WAIT\x01true\x02a\x011", b"a\x011"),
        (b"a\x011\x02WAIT\x01true\x02b\x012\x02", b"a\x011\x02b\x012\x02"),
        (b"XWAIT\x01true", b"XWAIT\x01true"),
        (b"WAIT\x01x\x02WAIT\x01y\x02WAIT\x01z", b""),
    ],
)
def test_removing_leaves_no_stray_separator(encoded: bytes, left: bytes) -> None:
    assert remove_property(encoded, b"WAIT") == left


def test_many_duplicates_are_removed_in_linear_time() -> None:
    encoded = b"WAIT\x01x\x02" * 200_000 + b"a\x01b"
    assert remove_property(encoded, b"WAIT") == b"a\x01b"  # a quadratic loop would run into the test's time limit
    assert get_property(b"XWAIT\x01x\x02" * 200_000, b"WAIT") is None


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        (b"", b"b\x01new"),
        (b"b\x01old", b"b\x01new"),
        (b"a\x011\x02b\x01old\x02c\x013\x02b\x01older", b"a\x011\x02c\x013\x02b\x01new"),
        (b"ab\x01stays", b"ab\x01stays\x02b\x01new"),
    ],
)
def test_a_property_that_is_set_is_there_once(encoded: bytes, expected: bytes) -> None:
    assert set_property(encoded, b"b", b"new") == expected
