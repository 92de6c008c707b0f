"""Messages go out of a store and into another one as they were."""

import io
import zlib
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.unit.storage.making import Appended, StoreMaker, put
from triomq.protocol.codes import MessageSysFlag
from triomq.protocol.errors import MessageIllegalError, StoreFullError
from triomq.protocol.host import encode_host
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import encode_properties
from triomq.protocol.record.record import decode_record
from triomq.storage.message_store import MessageStore
from triomq.storage.tools.message_document import (
    import_messages,
    json_line,
    msgpack_bytes,
    read_json_lines,
    read_msgpack,
    to_document,
)

COMPRESSED = int(MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB)


def nothing(count: int) -> None:
    """Progress that nobody looks at."""


def message(store: MessageStore, place: Appended) -> MessageExt:
    record = store.reader.look_message(place.physical_offset)
    assert record is not None
    return decode_record(record)


def some(store: MessageStore) -> list[MessageExt]:
    """One message of each kind."""
    properties = encode_properties(
        {"TAGS": "A", "KEYS": "k1 k2", "UNIQ_KEY": "0A", "color": "r\N{LATIN SMALL LETTER U WITH DIAERESIS}t"}
    )
    v6 = encode_host("2001:db8::1", 5000)
    places = [
        put(store, body=b"text", properties=properties, flag=-3, reconsume_times=2),
        put(store, queue_id=3, body=b"\xff\x00", born_host=v6, born_timestamp=77),
        put(store, body=zlib.compress(b"long " * 100), sys_flag=COMPRESSED),
        put(store, sys_flag=int(MessageSysFlag.TRANSACTION_COMMIT), prepared_transaction_offset=9),
    ]
    return [message(store, place) for place in places]


def told(document: dict[str, Any]) -> dict[str, Any]:
    new = ("physical_offset", "stored_ms", "offset_message_id", "queue_offset")
    return {name: value for name, value in document.items() if name not in new}


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_everything_but_places_and_times_stays(maker: StoreMaker, tmp_path: Path, form: str) -> None:
    before = some(maker())
    documents = [to_document(each, plain=False) for each in before]
    if form == "json":
        read = read_json_lines(io.BytesIO(b"\n".join(map(json_line, documents))))
    else:
        read = read_msgpack(io.BytesIO(b"".join(map(msgpack_bytes, documents))))
    other = maker(tmp_path / "other")
    counts: list[int] = []
    assert import_messages(other, read, counts.append) == 4
    assert counts == [1, 2, 3, 4]
    assert other.commit_log.flushed_offset == other.commit_log.max_offset
    after = []
    offset = 0
    while (record := other.reader.look_message(offset)) is not None:
        after.append(decode_record(record))
        offset += len(record)
    assert [told(to_document(each, plain=False)) for each in after] == [told(each) for each in documents]
    assert [unit.tags_code for unit in other.reader.queue_units("T", 0, 0, 1)] == [65]


def test_a_plain_document_has_the_body_as_it_was_sent(maker: StoreMaker) -> None:
    compressed = some(maker())[2]
    plain = to_document(compressed, plain=True)
    assert (plain["body"], plain["sys_flag"]) == (b"long " * 100, 0)
    assert to_document(compressed, plain=False)["sys_flag"] == COMPRESSED


def test_a_damaged_compressed_body_is_shown_as_it_is(maker: StoreMaker) -> None:
    store = maker()
    damaged = message(store, put(store, body=b"no zlib", sys_flag=COMPRESSED))
    assert to_document(damaged, plain=True)["body"] == b"no zlib"


def test_json_is_readable(maker: StoreMaker) -> None:
    lines = [orjson.loads(json_line(to_document(each, plain=False))) for each in some(maker())]
    assert lines[0]["body"] == "text"
    assert lines[0]["properties"]["KEYS"] == "k1 k2"
    assert lines[1]["body_base64"] == "/wA="
    assert lines[1]["born_host"] == "[2001:db8::1]:5000"
    assert "body" not in lines[1]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"topic": None}, "topic must be text"),
        ({"topic": "a b"}, "a b"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "waits for its delivery"),
        ({"topic": "rmq_sys_wheel_timer"}, "waits for its delivery"),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, "waits for its delivery"),
        ({"topic": "RMQ_SYS_TRANS_OP_HALF_TOPIC"}, "waits for its delivery"),
        ({"sys_flag": 4}, "waits for its delivery"),
        ({"queue_id": -1}, "queue id -1"),
        ({"queue_id": "0"}, "queue_id must be a whole number"),
        ({"flag": True}, "flag must be a whole number"),
        ({"flag": 2**40}, "message for T"),
        ({"properties": {"a": 1}}, "map of texts"),
        ({"properties": [1]}, "map of texts"),
        ({"properties": {"a": "b\x01"}}, "separator"),
        ({"born_host": "nonsense"}, "is not a host"),
        ({"born_host": "1.2.3:5"}, "1.2.3"),
        ({"body": None}, "either body or body_base64"),
        ({"body": None, "body_base64": "%"}, "base64"),
        ({"body": b"x", "body_base64": ""}, "either body or body_base64"),
    ],
)
def test_invalid_message_is_named_and_earlier_ones_are_stored(
    maker: StoreMaker, change: dict[str, Any], complaint: str
) -> None:
    store = maker()
    good = to_document(some(store)[0], plain=False)
    before = store.commit_log.max_offset
    with pytest.raises(MessageIllegalError, match="message 2: ") as caught:
        import_messages(store, [good, {**good, **change}, good], nothing)
    assert complaint.lower() in str(caught.value).lower()
    assert store.commit_log.max_offset == before + good["size_bytes"]


def test_a_missing_field_and_no_map_are_named(maker: StoreMaker) -> None:
    store = maker()
    good = to_document(some(store)[0], plain=False)
    del good["tries"]
    with pytest.raises(MessageIllegalError, match="message 1: 'tries' is missing"):
        import_messages(store, [good], nothing)
    with pytest.raises(MessageIllegalError, match="message 1: not a map"):
        import_messages(store, [7], nothing)


def test_a_full_disk_is_no_fault_of_the_message(maker: StoreMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    store = maker()
    good = to_document(some(store)[0], plain=False)

    def refuse(*_: object, **options: object) -> None:
        raise StoreFullError("no room")

    monkeypatch.setattr(store, "append", refuse)
    with pytest.raises(StoreFullError):
        import_messages(store, [good], nothing)


def test_blank_lines_are_left_out_and_others_must_be_json() -> None:
    assert list(read_json_lines(io.BytesIO(b'{"a":1}\n\n  \n[2]'))) == [{"a": 1}, [2]]
    with pytest.raises(MessageIllegalError, match="line 2 is not JSON"):
        list(read_json_lines(io.BytesIO(b"{}\n{")))


def test_a_line_without_end_is_not_read_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triomq.storage.tools.message_document._MAX_LINE_BYTES", 1000)
    with pytest.raises(MessageIllegalError, match="line 1 is longer"):
        list(read_json_lines(io.BytesIO(b"x" * 1001)))


@pytest.mark.parametrize("content", [b"\xc1", b"\x81\xa1", b"\x93\x01"])
def test_what_is_no_msgpack_or_torn_is_refused(content: bytes) -> None:
    with pytest.raises(MessageIllegalError, match="not msgpack"):
        list(read_msgpack(io.BytesIO(b"\x01" + content)))
