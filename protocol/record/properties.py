"""Message properties: ``name 0x01 value 0x02 name 0x01 value ...`` in UTF-8, at most 32767 bytes.

Rules of a reader: parts end at 0x02, a part's value starts after its first 0x01; parts with an empty name or
value are skipped; of equal names the last wins; a final 0x02 is optional.  Ill-formed UTF-8 becomes U+FFFD, as in
Java, so that one bad message cannot stop a queue.

The broker looks up, appends and removes properties in the encoded bytes, without a ``dict``.

Source: MessageDecoder.java, string2messageProperties, messageProperties2String; wire.md 10.3, store.md 2.7.
"""

from collections.abc import Mapping
from typing import Final

from triomq.protocol.errors import ProtocolError

NAME_VALUE_SEPARATOR: Final = b"\x01"
PROPERTY_SEPARATOR: Final = b"\x02"
_PROPERTY_SEPARATOR_BYTE: Final = 2
MAX_PROPERTIES_BYTES: Final = 32767  # the length field is a signed 16 bit number


class PropertyName:
    """RocketMQ's own names.  Source: MessageConst.java; wire.md 10.4."""

    KEYS: Final = "KEYS"
    TAGS: Final = "TAGS"
    WAIT_STORE_MSG_OK: Final = "WAIT"
    DELAY_TIME_LEVEL: Final = "DELAY"
    RETRY_TOPIC: Final = "RETRY_TOPIC"
    REAL_TOPIC: Final = "REAL_TOPIC"
    REAL_QUEUE_ID: Final = "REAL_QID"
    TRANSACTION_PREPARED: Final = "TRAN_MSG"
    PRODUCER_GROUP: Final = "PGROUP"
    MIN_OFFSET: Final = "MIN_OFFSET"
    MAX_OFFSET: Final = "MAX_OFFSET"
    BUYER_ID: Final = "BUYER_ID"
    ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
    TRANSFER_FLAG: Final = "TRANSFER_FLAG"
    CORRECTION_FLAG: Final = "CORRECTION_FLAG"
    MQ2_FLAG: Final = "MQ2_FLAG"
    RECONSUME_TIME: Final = "RECONSUME_TIME"
    MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
    MSG_REGION: Final = "MSG_REGION"
    TRACE_SWITCH: Final = "TRACE_ON"
    UNIQUE_KEY: Final = "UNIQ_KEY"
    CONSUME_START_TIMESTAMP: Final = "CONSUME_START_TIME"
    TRANSACTION_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
    TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
    CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
    INSTANCE_ID: Final = "INSTANCE_ID"
    CORRELATION_ID: Final = "CORRELATION_ID"
    REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
    TTL: Final = "TTL"
    ARRIVE_TIME: Final = "ARRIVE_TIME"
    PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
    CLUSTER: Final = "CLUSTER"
    MESSAGE_TYPE: Final = "MSG_TYPE"
    INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
    INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
    TRANSACTION_ID: Final = "__transactionId__"
    START_DELIVER_TIME: Final = "__STARTDELIVERTIME"
    # 5.x; a 4.9 broker stores them untouched
    SHARDING_KEY: Final = "__SHARDINGKEY"
    TIMER_DELAY_SECONDS: Final = "TIMER_DELAY_SEC"
    TIMER_DELAY_MILLIS: Final = "TIMER_DELAY_MS"
    TIMER_DELIVER_MILLIS: Final = "TIMER_DELIVER_MS"
    TIMER_OUT_MILLIS: Final = "TIMER_OUT_MS"
    TIMER_ENQUEUE_MILLIS: Final = "TIMER_ENQUEUE_MS"
    TIMER_DEQUEUE_MILLIS: Final = "TIMER_DEQUEUE_MS"
    TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
    TIMER_DELETE_UNIQUE_KEY: Final = "TIMER_DEL_UNIQKEY"
    TIMER_DELAY_LEVEL: Final = "TIMER_DELAY_LEVEL"
    POP_CHECKPOINT: Final = "POP_CK"
    FIRST_POP_TIME: Final = "1ST_POP_TIME"
    INNER_NUM: Final = "INNER_NUM"
    INNER_BASE: Final = "INNER_BASE"
    DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
    DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the encoded form, without a final 0x02; empty values are left out, because readers skip them.

    The length is not limited here: the code that adds the last property checks it.

    Raises:
        ProtocolError: a name is empty, or a name or value contains 0x01 or 0x02, is not text or not encodable.
    """
    parts = []
    for name, value in properties.items():
        if value.__class__ is not str or not name or name.__class__ is not str:
            raise ProtocolError(f"properties: {name!r}={value!r}: both must be text, the name not empty")
        if value:
            parts.append(f"{name}\x01{value}")
    text = "\x02".join(parts)
    if text.count("\x01") != len(parts) or text.count("\x02") >= max(len(parts), 1):
        raise ProtocolError("properties: a name or value holds a separator, 0x01 or 0x02")
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise ProtocolError(f"properties: not encodable as UTF-8: {exc}") from exc


def decode_properties(encoded: bytes | bytearray | memoryview) -> dict[str, str]:
    """Return all readable properties in the order of their first appearance; never fails."""
    text = str(encoded, "utf-8", "replace")
    properties = {}
    for part in text.split("\x02"):
        name, _, value = part.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def get_property(encoded: bytes, name: bytes) -> bytes | None:
    """Return the value of ``name`` without decoding the others; ``None`` if it is absent or empty.

    ``name`` must not be empty and must not contain 0x01 or 0x02.
    """
    needle = name + NAME_VALUE_SEPARATOR
    at = encoded.rfind(needle)
    while at >= 0:
        if at == 0 or encoded[at - 1] == _PROPERTY_SEPARATOR_BYTE:
            start = at + len(needle)
            end = encoded.find(PROPERTY_SEPARATOR, start)
            if value := encoded[start:] if end < 0 else encoded[start:end]:
                return value
        at = encoded.rfind(needle, 0, at + len(needle) - 1)
    return None


def append_property(encoded: bytes, name: bytes, value: bytes) -> bytes:
    """Return ``encoded`` with one more property at its end, where it wins over earlier ones of the same name.

    Neither ``name`` nor ``value`` may contain 0x01 or 0x02.
    """
    if not encoded or encoded[-1] == _PROPERTY_SEPARATOR_BYTE:
        return b"%b%b\x01%b" % (encoded, name, value)
    return b"%b\x02%b\x01%b" % (encoded, name, value)


def set_property(encoded: bytes, name: bytes, value: bytes) -> bytes:
    """Return ``encoded`` with the property ``name`` once, at its end.

    Neither ``name`` nor ``value`` may contain 0x01 or 0x02.
    """
    return append_property(remove_property(encoded, name), name, value)


def remove_property(encoded: bytes, name: bytes) -> bytes:
    """Return ``encoded`` without any property ``name``."""
    needle = name + NAME_VALUE_SEPARATOR
    at = encoded.find(needle)
    if at < 0:
        return encoded
    if at == 0 or encoded[at - 1] == _PROPERTY_SEPARATOR_BYTE:  # the usual case: it occurs once
        end = encoded.find(PROPERTY_SEPARATOR, at)
        if end < 0:
            return encoded[: max(at - 1, 0)]
        encoded = encoded[:at] + encoded[end + 1 :]
        if encoded.find(needle, at) < 0:
            return encoded
    kept = [part for part in encoded.split(PROPERTY_SEPARATOR) if not part.startswith(needle)]
    return PROPERTY_SEPARATOR.join(kept)
