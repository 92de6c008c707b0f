"""The header codec, on headers made for the test: kinds, defaults, wire names, errors."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Annotated, NewType, Optional

import pytest

from triomq.protocol.errors import ProtocolError
from triomq.protocol.wire.headers import Header, Int32, Wire

Size = NewType("Size", int)


@dataclass(slots=True)
class Sample(Header):
    topic_name: str
    queue_id: Int32
    born_timestamp: int
    is_force: bool
    note: str | None = None
    retries: Int32 | None = None
    size: Size | None = None
    unit_mode: bool = False
    perm: Int32 = 6
    kind: str = "SINGLE"


@dataclass(slots=True)
class Renamed(Header):
    one: Annotated[str, Wire("a")]
    two: Annotated[Int32, Wire("B_B")] | None = None
    three: Annotated[bool, Wire("c")] | None = None
    four: Optional[Annotated[Size, Wire("d")]] = None  # noqa: UP045  # the old spelling has to work too


@dataclass(slots=True)
class Empty(Header):
    pass


REQUIRED = {"topicName": "T", "queueId": "1", "bornTimestamp": "2", "isForce": "true"}


def with_field(name: str, text: str) -> Mapping[str, str]:
    return REQUIRED | {name: text}


# --- decode ---


def test_fields_are_read_or_get_their_defaults() -> None:
    more = {"note": "", "retries": "3", "size": "4", "unitMode": "true", "perm": "7", "kind": "MULTI"}
    assert Sample.decode(REQUIRED | more) == Sample("T", 1, 2, True, "", 3, Size(4), True, 7, "MULTI")
    assert Sample.decode(REQUIRED) == Sample("T", 1, 2, True)


def test_wire_names_may_differ_from_camel_case() -> None:
    assert Renamed.decode({"a": "x", "B_B": "1", "c": "true", "d": "9"}) == Renamed("x", 1, True, Size(9))
    assert Renamed.decode({"a": "x", "two": "1", "three": "true"}) == Renamed("x")


def test_unknown_fields_are_ignored() -> None:
    """wire.md 5: Java consumers add ``ReqT=0`` to every request."""
    assert Sample.decode(REQUIRED | {"ReqT": "0", "queue_id": "9", "QueueId": "9", "": ""}) == Sample("T", 1, 2, True)
    assert Empty.decode({"x": "y"}) == Empty()


@pytest.mark.parametrize("missing", list(REQUIRED))
def test_missing_field_error_names_class_and_wire_name(missing: str) -> None:
    with pytest.raises(ProtocolError, match=f"^Sample: field '{missing}' is missing$"):
        Sample.decode({name: text for name, text in REQUIRED.items() if name != missing})


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("TRUE", True), ("True", True), ("false", False), ("1", False), ("yes", False), ("", False)],
)
def test_bool_true_in_any_case_and_else_false(text: str, value: bool) -> None:
    """wire.md 2.1: Java's ``Boolean.parseBoolean``."""
    assert Sample.decode(with_field("isForce", text)).is_force is value
    assert Sample.decode(with_field("unitMode", text)).unit_mode is value


INT32_EDGES = [-(2**31), -(2**31) + 1, -2, -1, 0, 1, 9, 1023, 1024, 1025, 10**9 - 1, 10**9, 2**31 - 2, 2**31 - 1]
INT64_EDGES = [*INT32_EDGES, 2**31, -(2**31) - 1, 1_700_000_000_000, 10**18 - 1, 10**18, 2**63 - 1, -(2**63)]


@pytest.mark.parametrize("number", INT64_EDGES)
def test_field_takes_every_int_or_long_of_java(number: int) -> None:
    if number in INT32_EDGES:
        assert Sample.decode(with_field("queueId", str(number))).queue_id == number
    assert Sample.decode(with_field("bornTimestamp", str(number))).born_timestamp == number
    assert Sample.decode(with_field("size", str(number))).size == number


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("queueId", (2**31, -(2**31) - 1, 2**32, 9_999_999_999, 2**63, -(2**63), 10**40)),
        ("size", (2**63, -(2**63) - 1, 10**19, 2**64, 10**40, -(10**4000))),
    ],
)
def test_number_beyond_its_field_is_refused_by_name(name: str, numbers: tuple[int, ...]) -> None:
    for number in numbers:
        with pytest.raises(ProtocolError, match=f"^Sample: field '{name}' is out of range: "):
            Sample.decode(with_field(name, str(number)))


NO_NUMBERS = ["", " ", " 1", "1 ", "1\n", "- 1", "\0", "\u00b2"]
NO_NUMBERS += ["1_0", "_1", "-", "+", "--1", "+-1", "1.0", "1e3", "0x1", "1L", "true"]


@pytest.mark.parametrize("name", ["queueId", "bornTimestamp", "retries", "size"])
@pytest.mark.parametrize("text", NO_NUMBERS)
def test_number_java_rejects_is_rejected_by_name(name: str, text: str) -> None:
    with pytest.raises(ProtocolError, match=f"^Sample: field '{name}' is not a number: "):
        Sample.decode(with_field(name, text))


@pytest.mark.parametrize(("text", "value"), [("+7", 7), ("-0", 0), ("007", 7), ("-007", -7), ("\uff11\uff12", 12)])
def test_number_is_parsed_as_in_java(text: str, value: int) -> None:
    assert Sample.decode(with_field("queueId", text)).queue_id == value
    assert Sample.decode(with_field("size", text)).size == value


def test_error_cites_start_of_long_text() -> None:
    for text in ("x" * 100_000, "9" * 100_000):
        with pytest.raises(ProtocolError) as caught:
            Sample.decode(with_field("queueId", text))
        assert len(str(caught.value)) < 120


@pytest.mark.parametrize("text", ["9" * 2**20, "-" + "9" * 2**20, "0" * 2**20, "9" * 4300, "1" + "\u0661" * 2**19])
def test_number_of_million_digits_is_refused_at_once(text: str) -> None:
    """``int`` takes a time that grows with the square of the digits."""
    began = time.process_time()
    with pytest.raises(ProtocolError, match="out of range"):
        Sample.decode(with_field("bornTimestamp", text))
    assert time.process_time() - began < 1


# --- encode ---


class Code(IntEnum):
    TEN = 10


class Flag(IntFlag):
    A = 1
    B = 2


def test_values_become_text_and_none_is_left_out() -> None:
    assert Sample("T", -1, 2, False, size=Size(4)).encode() == {
        "topicName": "T",
        "queueId": "-1",
        "bornTimestamp": "2",
        "isForce": "false",
        "size": "4",
        "unitMode": "false",
        "perm": "6",
        "kind": "SINGLE",
    }
    assert Renamed("x", 1, True, Size(2)).encode() == {"a": "x", "B_B": "1", "c": "true", "d": "2"}
    assert Empty().encode() == {}


def test_enums_are_written_as_their_numbers() -> None:
    encoded = Sample("T", Code.TEN, Flag.A | Flag.B, True).encode()
    assert (encoded["queueId"], encoded["bornTimestamp"]) == ("10", "3")
