"""Messages as documents, to move them from one store into another: lines of JSON, or msgpack.

A document is a map of all fields of a record.  In JSON, a body that is not UTF-8 or is compressed is base64.
"""

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO, Final

import msgpack
import orjson

from triomq.protocol.codes import TRANSACTION_MASK, MessageSysFlag
from triomq.protocol.errors import IllegalNameError, MessageIllegalError, ProtocolError, TriomqError
from triomq.protocol.host import decode_host, encode_host
from triomq.protocol.names import validate_topic
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import encode_properties
from triomq.protocol.record.record import tags_code_of
from triomq.storage.append import entry
from triomq.storage.delays import WAITING_TOPICS
from triomq.storage.message_store import MessageStore

_COMPRESSION: Final = int(MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB)
_INTEGERS: Final = ("queue_id", "flag", "sys_flag", "born_ms", "tries", "prepared_transaction_offset")
_PENDING_TOPICS: Final = WAITING_TOPICS | {"RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"}
"""What is delivered, or was settled, by its place in the queue of one store."""

_MAX_LINE_BYTES: Final = 128 * 1024**2  # a body of control characters that fills a frame has 96 MiB in JSON

Document = Mapping[str, Any]


def to_document(message: MessageExt, *, plain: bool) -> dict[str, Any]:
    """Return a message as a document; its body is bytes.

    Args:
        message: from a record.
        plain: give the body decompressed, if that can be done; else as stored.
    """
    body, sys_flag = message.stored_body, message.sys_flag
    if plain and sys_flag & MessageSysFlag.COMPRESSED:
        try:
            body, sys_flag = message.body, sys_flag & ~_COMPRESSION
        except TriomqError:  # damaged, or the package is missing: shown as it is
            body = message.stored_body
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "size_bytes": message.store_size,
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "stored_ms": message.store_timestamp,
        "store_host": _host_text(message.encoded_store_host),
        "born_ms": message.born_timestamp,
        "born_host": _host_text(message.encoded_born_host),
        "flag": message.flag,
        "sys_flag": sys_flag,
        "tries": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "properties": message.properties,
        "body": body,
    }


def json_line(document: Document) -> bytes:
    """Return a document as a line of JSON with its line break."""
    body = document["body"]
    rest = {name: value for name, value in document.items() if name != "body"}
    try:
        rest["body"] = body.decode()
    except UnicodeDecodeError:
        rest["body_base64"] = base64.b64encode(body).decode()
    return orjson.dumps(rest) + b"\n"


def msgpack_bytes(document: Document) -> bytes:
    """Return a document as msgpack."""
    packed: bytes = msgpack.packb(document)
    return packed


def read_json_lines(file: BinaryIO) -> Iterator[Any]:
    """Yield the document of each line that is not blank.

    Raises:
        MessageIllegalError: a line is not JSON, or too long.
    """
    number = 0
    while line := file.readline(_MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > _MAX_LINE_BYTES:
            raise MessageIllegalError(f"line {number} is longer than {_MAX_LINE_BYTES} bytes")
        if line.strip():
            try:
                yield orjson.loads(line)
            except orjson.JSONDecodeError as exc:
                raise MessageIllegalError(f"line {number} is not JSON: {exc}") from exc


def read_msgpack(file: BinaryIO) -> Iterator[Any]:
    """Give the values of a file, one after the other.

    Raises:
        MessageIllegalError: the file is not msgpack, or ends in the middle of a value.
    """
    unpacker = msgpack.Unpacker(file, max_buffer_size=_MAX_LINE_BYTES)
    end = 0  # of the last whole value
    try:
        for value in unpacker:
            end = unpacker.tell()
            yield value
    except (ValueError, msgpack.UnpackException) as exc:
        raise MessageIllegalError(f"not msgpack: {exc or type(exc).__name__}") from exc
    if unpacker.tell() != end or unpacker.read_bytes(1):  # unlike the file's length, this works with a pipe too
        raise MessageIllegalError(f"not msgpack: the file ends in the middle of the message at byte {end}")


def import_messages(store: MessageStore, documents: Iterable[Any], stored: Callable[[int], object]) -> int:
    """Append documents to an open store and return how many.

    Topic and queue id, properties, flags, hosts, born time and number of tries stay; queue offset, physical offset and
    store time are new.  Everything is on the disk when this returns or raises.

    Args:
        store: takes them.
        documents: in the form of ``to_document``, with the body as bytes, or as in JSON.
        stored: called with the number of messages so far, after each.

    Raises:
        MessageIllegalError: a document is invalid, with its number; earlier ones are stored.
        StoreFullError, StoreError: the disk reports an error; earlier ones are stored.
    """
    count = 0
    try:
        for document in documents:
            try:
                _put(store, document)
            except (KeyError, TypeError, ValueError, IllegalNameError, MessageIllegalError, ProtocolError) as exc:
                reason = f"{exc} is missing" if isinstance(exc, KeyError) else exc
                raise MessageIllegalError(f"message {count + 1}: {reason}") from exc
            count += 1
            stored(count)
    finally:
        store.flush()
    return count


def _put(store: MessageStore, document: Any) -> None:
    if not isinstance(document, dict):
        raise TypeError("not a map")
    for name in _INTEGERS:
        if type(document[name]) is not int:
            raise TypeError(f"{name} must be a whole number")
    topic, properties = document["topic"], document["properties"]
    if not isinstance(topic, str) or not isinstance(properties, dict):
        raise TypeError("topic must be text, and properties a map of texts")
    if not all(isinstance(text, str) for pair in properties.items() for text in pair):
        raise TypeError("properties must be a map of texts")
    validate_topic(topic)
    sys_flag = document["sys_flag"]
    if topic in _PENDING_TOPICS or sys_flag & TRANSACTION_MASK == MessageSysFlag.TRANSACTION_PREPARED:
        raise ValueError(f"a message of {topic} waits for its delivery in one broker and cannot go to another")
    encoded = encode_properties(properties)
    message = entry(
        store.queue(topic, document["queue_id"]),
        _body(document),
        encoded,
        tags_code=tags_code_of(encoded),
        flag=document["flag"],
        sys_flag=sys_flag,
        born_timestamp=document["born_ms"],
        born_host=_host(document["born_host"]),
        store_host=_host(document["store_host"]),
        reconsume_times=document["tries"],
        prepared_transaction_offset=document["prepared_transaction_offset"],
    )
    store.append([message])


def _body(document: Document) -> bytes:
    body, encoded = document.get("body"), document.get("body_base64")
    if isinstance(body, bytes) and encoded is None:
        return body
    if isinstance(body, str) and encoded is None:
        return body.encode()
    if isinstance(encoded, str) and body is None:
        return base64.b64decode(encoded, validate=True)
    raise ValueError("either body or body_base64 is required")


def _host_text(host: bytes) -> str:
    ip, port = decode_host(host)
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def _host(text: Any) -> bytes:
    ip, separator, port = str(text).rpartition(":")
    if not separator or not port.isdecimal():
        raise ValueError(f"{text!r} is not a host: an address and a port are required")
    return encode_host(ip.strip("[]"), int(port))
