"""fastjson: irregular JSON."""

import json
import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.protocol.bodies.fastjson import MAX_IRREGULAR_BYTES, dumps, loads
from triomq.protocol.errors import ProtocolError
from triomq.protocol.message_queue import MessageQueue

QUEUE = MessageQueue("T", "b", 0)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
I64 = st.integers(-(2**63), 2**63 - 1)
QUEUES = st.builds(MessageQueue, TEXT, TEXT, st.integers(-(2**31), 2**31 - 1))
SCALARS = st.one_of(st.none(), st.booleans(), I64, TEXT)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(TEXT, inner, max_size=4),
        st.dictionaries(I64, inner, max_size=4),
        st.dictionaries(QUEUES, inner, max_size=4),
    ),
    max_leaves=20,
)


def with_text_keys(value: Any) -> Any:
    if isinstance(value, list):
        return [with_text_keys(member) for member in value]
    if not isinstance(value, dict):
        return value
    return {key if isinstance(key, str) else dumps(key).decode(): with_text_keys(value[key]) for key in value}


@given(VALUES)
def test_what_is_written_is_read_again(value: Any) -> None:
    expected = with_text_keys(value)
    assert loads(dumps(value)) == expected
    assert loads(dumps(value, quoted_ids=True)) == expected


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=20))
def test_irregular_keys_leave_standard_json_around(value: Any) -> None:
    for ascii_only in (True, False):
        irregular = b"{0:" + json.dumps(value, ensure_ascii=ascii_only).encode() + b"}"
        assert loads(irregular) == {"0": orjson.loads(json.dumps(value))}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{0:"10.0.0.5:10911",1:"10.0.0.6:10911"}', {"0": "10.0.0.5:10911", "1": "10.0.0.6:10911"}),
        (b"{-1:0}", {"-1": 0}),
        (b' { 1 : { 2 : [ ] } , "x" : {} } ', {"1": {"2": []}, "x": {}}),
        (b'{{"brokerName":"b","queueId":0} :5}', {'{"brokerName":"b","queueId":0}': 5}),
        (b'{{ "a" : "\\"}{[1:" } : {{}:1}}', {'{ "a" : "\\"}{[1:" }': {"{}": 1}}),
        (b'{{"a":1\n}:{"b":{"c":{}},2:[{},3]}}', {'{"a":1\n}': {"b": {"c": {}}, "2": [{}, 3]}}),
        (b'{"1:{":"{2:3}",0:"\\u00e4\\ud83d\\ude00\\n"}', {"1:{": "{2:3}", "0": "ä\U0001f600\n"}),
        (b"{0:1.5e3,1:true,2:null}", {"0": 1500.0, "1": True, "2": None}),
        (b"{0:1,0:2}", {"0": 2}),
    ],
)
def test_irregular_keys_are_read(text: bytes, value: Any) -> None:
    assert loads(text) == value
    assert loads(memoryview(text)) == value


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b" ", b"{0:1", b"{0:1}}", b"{0:1}x", b"{0:1,}", b"{0:[1,]}", b"{0:[1 2]}", b"{0 1}", b"{0}"),
        *(b"{0:}", b"{0:'x'}", b"{'a':1}", b"{a:1}", b"{1.5:1}", b"{1e5:1}", b"{true:1}"),
        *(b"{null:1}", b"{[1]:1}", b"{1-1:1}", b'{{"a":[1]}:5}', b"{{{}:1}:1}", b"{\xc2\xa00:1}"),
        *(b"{0:" + b"9" * 5000, b'{0:"\\ud800"}', b'{0:"\\x"}', b'{0:"\n"}', b'{0:"abc', b'{0:"\xff"}'),
        *(b"{0:NaN}", b"{0:Infinity}", b"{0:]}", b"{0:,}", b"\xef\xbb\xbf{}"),
    ],
)
def test_text_neither_json_nor_fastjson_is_protocol_error(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        loads(text)


@pytest.mark.parametrize("opening", [b"{0:", b"[", b"{", b'{0:{"a":'])
def test_deep_nesting_is_refused(opening: bytes) -> None:
    with pytest.raises(ProtocolError):
        loads(b"{0:" + opening * 100_000)


def test_only_irregular_json_text_is_limited_in_length() -> None:
    filler = b'"' + b"x" * MAX_IRREGULAR_BYTES + b'"'
    assert loads(b'{"0":' + filler + b"}")
    with pytest.raises(ProtocolError):
        loads(b"{0:" + filler + b"}")


@pytest.mark.parametrize(
    "piece",
    [b'0:"', b"{0:", b'{0:{"a":1,', b'0:"\\', b"0:1,", b'{"a":"{",0:', b"[{},", b'{"topic":"t",{', b"9", b"{ ", b'\\"'],
)
def test_unfinished_text_is_refused_in_linear_time(piece: bytes) -> None:
    def seconds(repeat: int) -> float:
        start = time.process_time()
        with pytest.raises(ProtocolError):
            loads(b"{" + piece * repeat)
        return time.process_time() - start

    # Quadratic time would make the long text 10,000 times slower than the short one.
    assert min(seconds(50_000) for _ in range(2)) < 1000 * max(min(seconds(500) for _ in range(5)), 1e-4)


MQ = b'{"brokerName":"b","queueId":0,"topic":"T"}'


@pytest.mark.parametrize(
    ("value", "bare", "quoted"),
    [
        ({0: "a b", 10: [1, {2: 3}]}, b'{0:"a b",10:[1,{2:3}]}', b'{"0":"a b","10":[1,{"2":3}]}'),
        ({"x": {QUEUE: {0: 1}}}, b'{"x":{' + MQ + b":{0:1}}}", b'{"x":{' + MQ + b':{"0":1}}}'),
        ({"mq": QUEUE}, b'{"mq":' + MQ + b"}", b'{"mq":' + MQ + b"}"),
        ([QUEUE], b"[" + MQ + b"]", b"[" + MQ + b"]"),
    ],
)
def test_number_keys_are_bare_or_quoted(value: Any, bare: bytes, quoted: bytes) -> None:
    """No blank is written."""
    assert dumps(value) == bare
    assert dumps(value, quoted_ids=True) == quoted
