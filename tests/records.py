"""Message records with usual fields, so that a test names only those that it is about."""

from typing import Any, Final

from triomq.protocol.host import encode_host
from triomq.protocol.record.record import encode_record

HOST: Final = encode_host("127.0.0.1", 10911)
_USUAL: Final[dict[str, Any]] = {
    "queue_id": 0,
    "queue_offset": 0,
    "physical_offset": 0,
    "sys_flag": 0,
    "born_timestamp": 0,
    "born_host": HOST,
    "store_timestamp": 0,
    "store_host": HOST,
    "body": b"body",
    "topic": b"T",
    "properties": b"",
}

#: A record as wire.md shows it, with its bytes in the tests of records.
DOCUMENTED: Final[dict[str, Any]] = {
    "queue_id": 1,
    "queue_offset": 5,
    "physical_offset": 1024,
    "sys_flag": 0,
    "born_timestamp": 1_700_000_000_000,
    "born_host": encode_host("10.77.0.1", 50000),
    "store_timestamp": 1_700_000_000_005,
    "store_host": encode_host("10.77.0.1", 10911),
    "body": b"hello",
    "topic": b"TopicTest",
    "properties": b"TAGS\x01TagA\x02UNIQ_KEY\x01C0A8010A1A2B18B4AAC216D2F36E0001",
}


def make_record(**fields: Any) -> bytes:
    """Encode a record with these fields, and usual ones for the rest."""
    return encode_record(**(_USUAL | fields))
