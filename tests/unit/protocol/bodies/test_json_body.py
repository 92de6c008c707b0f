"""json_body: how bodies are read and written."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.protocol.bodies.json_body import JsonBody, Wire, json_pieces
from triomq.protocol.errors import ProtocolError
from triomq.protocol.message_queue import MessageQueue


class Colour(IntEnum):
    RED = 5
    GREEN = 6


@dataclass(slots=True)
class Inner(JsonBody):
    number: int = 7


@dataclass(slots=True)
class Outer(JsonBody):
    irregular = True

    z_last: Annotated[str, Wire("zLAST")] = ""
    a_number: int = 1
    ratio: float = 0.5
    flag: bool = False
    text: str | None = None
    colour: Colour = Colour.RED
    inner: Inner = field(default_factory=Inner)
    maybe: Inner | None = None
    queue: MessageQueue | None = None
    names: list[str] = field(default_factory=list)
    inners: list[Inner] = field(default_factory=list)
    by_id: dict[int, str] = field(default_factory=dict)
    by_name: dict[str, Inner] = field(default_factory=dict)
    by_queue: dict[MessageQueue, int] = field(default_factory=dict)
    nested: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)


QUEUE = MessageQueue("T", "b", 3)
MQ = b'{"brokerName":"b","queueId":3,"topic":"T"}'
I64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
INNER = st.builds(Inner, I64)
QUEUES = st.builds(MessageQueue, TEXT, TEXT, st.integers(0, 9))
OUTER = st.builds(
    Outer,
    TEXT,
    I64,
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none() | TEXT,
    st.sampled_from(Colour),
    INNER,
    st.none() | INNER,
    st.none() | QUEUES,
    st.lists(TEXT, max_size=3),
    st.lists(INNER, max_size=3),
    st.dictionaries(I64, TEXT, max_size=3),
    st.dictionaries(TEXT, INNER, max_size=3),
    st.dictionaries(QUEUES, I64, max_size=3),
    st.dictionaries(TEXT, st.dictionaries(QUEUES, I64, max_size=3), max_size=3),
)


@given(OUTER)
def test_body_survives_the_round_trip(body: Outer) -> None:
    assert Outer.decode(body.encode()) == body
    assert Outer.decode(memoryview(body.encode(quoted_ids=True))) == body


@given(st.lists(OUTER, max_size=3), st.integers(1, 3))
def test_pieces_are_what_is_encoded_at_once(bodies: list[Outer], at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("triomq.protocol.bodies.json_body._PIECE", at_once)
        for body in bodies:
            assert b"".join(json_pieces(body)) == body.encode()
        assert b"".join(json_pieces(bodies)) == b"[" + b",".join(body.encode() for body in bodies) + b"]"


def test_members_are_written_sorted_without_nulls_or_blanks() -> None:
    body = Outer("z", by_id={0: "x"}, by_queue={QUEUE: 5}, queue=QUEUE)
    assert body.encode() == (
        b'{"aNumber":1,"byId":{0:"x"},"byName":{},"byQueue":{' + MQ + b':5},"colour":"RED","flag":false,'
        b'"inner":{"number":7},"inners":[],"names":[],"nested":{},"queue":' + MQ + b',"ratio":0.5,"zLAST":"z"}'
    )


def test_missing_null_and_unknown_members_are_tolerated() -> None:
    assert Outer.decode(b"{}") == Outer()
    assert Outer.decode(b'{"aNumber":null,"names":null,"inner":null,"later":[{}]}') == Outer()


@pytest.mark.parametrize(
    ("text", "member", "value"),
    [
        (b'{"aNumber":"12"}', "a_number", 12),
        (b'{"aNumber":"-12"}', "a_number", -12),
        (b'{"ratio":"1.5"}', "ratio", 1.5),
        (b'{"ratio":2}', "ratio", 2.0),
        (b'{"flag":"TRUE"}', "flag", True),
        (b'{"flag":"yes"}', "flag", False),
        (b'{"flag":1}', "flag", True),
        (b'{"text":5}', "text", "5"),
        (b'{"text":1.5}', "text", "1.5"),
        (b'{"text":true}', "text", "true"),
        (b'{"text":false}', "text", "false"),
        (b'{"colour":"GREEN"}', "colour", Colour.GREEN),
        (b'{"colour":1}', "colour", Colour.GREEN),
        (b'{"colour":"BLUE"}', "colour", Colour.RED),
        (b'{"colour":99}', "colour", Colour.RED),
        (b'{"colour":-1}', "colour", Colour.RED),
        (b'{"queue":{"topic":"T","queueId":"3"}}', "queue", MessageQueue("T", "", 3)),
        (b'{"byId":{"0":"x",1:"y"}}', "by_id", {0: "x", 1: "y"}),
        (b'{"byQueue":{' + MQ + b":5}}", "by_queue", {QUEUE: 5}),
        (b'{"byQueue":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":3,\\"topic\\":\\"T\\"}":5}}', "by_queue", {QUEUE: 5}),
        (b'{"byQueue":[[' + MQ + b",5]]}", "by_queue", {QUEUE: 5}),
        (b'{"byQueue":[{"brokerName":"b","offset":5,"queueId":3,"topic":"T"}]}', "by_queue", {QUEUE: 5}),
    ],
)
def test_reader_takes_what_javas_readers_take(text: bytes, member: str, value: Any) -> None:
    assert getattr(Outer.decode(text), member) == value


@pytest.mark.parametrize(
    ("text", "member"),
    [
        (b'{"aNumber":"x"}', "aNumber"),
        (b'{"aNumber":1.5}', "aNumber"),
        (b'{"aNumber":true}', "aNumber"),
        (b'{"aNumber":18446744073709551615}', "aNumber"),
        (b'{"aNumber":"' + b"9" * 10_000 + b'"}', "aNumber"),
        (b'{"aNumber":[]}', "aNumber"),
        (b'{"ratio":"x"}', "ratio"),
        (b'{"ratio":true}', "ratio"),
        (b'{"ratio":"NaN"}', "ratio"),
        (b'{"ratio":"inf"}', "ratio"),
        (b'{"aNumber":"9223372036854775808"}', "aNumber"),
        (b'{"aNumber":"1_0"}', "aNumber"),
        (b'{"aNumber":""}', "aNumber"),
        (b'{"flag":[]}', "flag"),
        (b'{"text":{}}', "text"),
        (b'{"colour":{}}', "colour"),
        (b'{"colour":true}', "colour"),
        (b'{"queue":5}', "queue"),
        (b'{"queue":{"queueId":"x"}}', "queue"),
        (b'{"names":{}}', "names"),
        (b'{"names":[[]]}', "names"),
        (b'{"byId":[]}', "byId"),
        (b'{"byId":{"x":"y"}}', "byId"),
        (b'{"byName":5}', "byName"),
        (b'{"byQueue":{"x":5}}', ""),
        (b'{"byQueue":{"[]":5}}', "byQueue"),
        (b'{"byQueue":{0:5}}', "byQueue"),
        (b'{"byQueue":[5]}', "byQueue"),
        (b'{"byQueue":[[' + MQ + b"]]}", "byQueue"),
        (b'{"nested":{"a":[5]}}', "nested"),
    ],
)
def test_invalid_member_raises_protocol_error_naming_it(text: bytes, member: str) -> None:
    with pytest.raises(ProtocolError, match=f"Outer: member '{member}'" if member else "JSON"):
        Outer.decode(text)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"5", b"null", b'{"inner":5}', b'{"inners":[null]}', b'{"byName":{"a":[]}}']
)
def test_what_is_no_object_is_a_protocol_error(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        Outer.decode(text)


def test_an_irregular_body_may_be_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b'{"byId":{0:"x"}}'
    monkeypatch.setattr(Outer, "max_irregular_bytes", len(text))
    assert Outer.decode(text).by_id == {0: "x"}
    with pytest.raises(ProtocolError):
        Outer.decode(text + b" ")
    assert Outer.decode(b'{"byId":{"0":"x"}} ').by_id == {0: "x"}


def test_body_without_irregular_keys_parsed_as_strict_json() -> None:
    with pytest.raises(ProtocolError):
        Inner.decode(b'{"number":5,0:1}')
    assert Outer.decode(b'{"aNumber":5,0:1}').a_number == 5
