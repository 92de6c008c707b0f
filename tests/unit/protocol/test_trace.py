"""The records of all versions of the clients, as they write them."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from triomq.protocol.trace import (
    ConsumeBegun,
    ConsumeEnded,
    Published,
    Recalled,
    TraceRecord,
    TransactionEnded,
    decode_trace,
    encode_trace,
    trace_keys,
)

ID = "7F00000118871DBD16A666B6E0D50000"
PLACE = "0A4D000100002A9F0000000000001773"
SENT = Published(1795214461145, "R", "PG", "xTopic", ID, "t", "k1 k2", "10.0.0.5:10911", 16, 58, 1, PLACE, True)
BEGUN = ConsumeBegun(1, "R", "CG", "REQUEST", ID, 2, "k1")
ENDED = ConsumeEnded("REQUEST", ID, 3, False, "k1", 4, 5, "CG")

VALUES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    bool: st.booleans(),
    str: st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"])).filter(
        lambda text: text != "null"
    ),
}


def records(kind: type[TraceRecord]) -> st.SearchStrategy[TraceRecord]:
    return st.builds(kind, **{name: VALUES[kind_of] for name, kind_of in kind.__annotations__.items()})


ANY = st.one_of(*map(records, (Published, ConsumeBegun, ConsumeEnded, TransactionEnded, Recalled)))


@given(st.lists(ANY))
def test_what_is_encoded_is_decoded(written: list[TraceRecord]) -> None:
    body = "".join(encode_trace(record) for record in written)
    found = decode_trace(body.encode())
    assert (found, list(map(type, found))) == (written, list(map(type, written)))


@pytest.mark.parametrize(
    ("text", "record"),
    [
        (f"Pub|1795214461145|R|PG|xTopic|{ID}|t|k1 k2|10.0.0.5:10911|16|58|1|{PLACE}|true", SENT),
        (
            f"Pub|1795214461145|R|PG|xTopic|{ID}|t|k1 k2|10.0.0.5:10911|16|58|1|true",
            SENT._replace(offset_message_id=""),
        ),
        (
            f"Pub|1795214461145|R|PG|xTopic|{ID}|t|k1 k2|10.0.0.5:10911|16|58|1|{PLACE}|true|1.2.3.4",
            SENT._replace(client_host="1.2.3.4"),
        ),
        (f"SubBefore|1|R|CG|REQUEST|{ID}|2|k1", BEGUN),
        (f"SubBefore|1|R|CG|REQUEST|{ID}|2|k1|1.2.3.4", BEGUN._replace(client_host="1.2.3.4")),
        (f"SubAfter|REQUEST|{ID}|3|false|k1|4|5|CG", ENDED),
        (f"SubAfter|REQUEST|{ID}|3|false|k1|4", ENDED._replace(time_ms=0, group="")),
        (f"SubAfter|REQUEST|{ID}|3|false|null", ConsumeEnded("REQUEST", ID, 3, False, "")),
        (
            f"EndTransaction|9|R|PG|T|{ID}|t|k|h:1|2|{ID}|COMMIT_MESSAGE|true",
            TransactionEnded(9, "R", "PG", "T", ID, "t", "k", "h:1", 2, ID, "COMMIT_MESSAGE", True),
        ),
        (f"Recall|9|R|PG|T|{ID}|true", Recalled(9, "R", "PG", "T", ID, True)),
        ("Unknown|1", None),
        (f"Pub|soon|R|PG|xTopic|{ID}|t|k|h|16|58|1|{PLACE}|true", None),
        ("Pub|1|R", None),
    ],
)
def test_records_of_all_clients_are_read(text: str, record: TraceRecord | None) -> None:
    assert decode_trace(text.replace("|", "\x01").encode() + b"\x02") == ([] if record is None else [record])


def test_a_record_is_written_as_java_writes_it() -> None:
    assert encode_trace(SENT).replace("\x01", "|").replace("\x02", "$") == (
        f"Pub|1795214461145|R|PG|xTopic|{ID}|t|k1 k2|10.0.0.5:10911|16|58|1|{PLACE}|true$"
    )
    assert encode_trace(ENDED).replace("\x01", "|") == f"SubAfter|REQUEST|{ID}|3|false|k1|4|5|CG\x02"
    assert encode_trace(BEGUN._replace(keys="")).replace("\x01", "|") == f"SubBefore|1|R|CG|REQUEST|{ID}|2|null\x02"
    assert encode_trace(BEGUN._replace(keys="a\x01b\x02c")).endswith("\x01a b c\x02")


def test_trace_message_is_found_by_ids_and_keys() -> None:
    assert trace_keys([SENT, BEGUN, ENDED, Recalled(1, "", "", "", "other", True)]) == [ID, "k1", "k2", "other"]
