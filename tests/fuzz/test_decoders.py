"""Hostile bytes for every decoder of input from peers and users: the result is a value or our error.

Seeded, so that each run tries the same.  ``python -m tests.fuzz.test_decoders SECONDS`` searches on with other seeds.
"""

import inspect
import random
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

import pytest

from tests.fuzz.test_decode import FRAMES, cut, cut_out, flip_bits, insert_garbage, repeat_a_part, write_an_edge
from triomq.client.cluster.queue_requests import offset_entries
from triomq.client.cluster.route import publish_queues, read_route
from triomq.client.producer.config import SendStatus, read_send_result
from triomq.protocol.acl.addresses import parse_pattern
from triomq.protocol.acl.plain_acl import read_rules, set_account
from triomq.protocol.bodies import client, group_health, route, statistics
from triomq.protocol.bodies.fastjson import loads
from triomq.protocol.bodies.json_body import JsonBody
from triomq.protocol.errors import TriomqError
from triomq.protocol.filters.filter_types import SqlFilter, TagFilter, parse_filter
from triomq.protocol.host import decode_host, encode_host
from triomq.protocol.java import read_properties
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.names import validate_group, validate_topic
from triomq.protocol.namespace import Namespace
from triomq.protocol.record.batch import decode_batch, encode_batch
from triomq.protocol.record.compression import LZ4, ZLIB, ZSTD, compress, decompress
from triomq.protocol.record.message_id import RecallHandle, parse_offset_message_id
from triomq.protocol.record.properties import decode_properties
from triomq.protocol.record.record import check_record, decode_record, decode_records, encode_record
from triomq.protocol.requests import groups, messages, offsets, topics
from triomq.protocol.trace import decode_trace
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.headers import Header
from triomq.protocol.wire.signing import parse_credentials
from triomq.storage.reading.cold_read import finish

SEED: Final = 20_240_818
COUNT: Final = 400
_LIMIT_S: Final = 5.0
_QUEUE: Final = MessageQueue("T", "b", 1)
_HOST: Final = encode_host("10.0.0.1", 10911)


class Decoder(NamedTuple):
    """What reads bytes, and good ones."""

    name: str
    decode: Callable[[bytes], object]
    seeds: tuple[bytes, ...]


def sample(hint: Any) -> Any:
    """Return a value of a member's type with something in it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated or origin in (Union, UnionType):
        return sample(arguments[0])
    if hasattr(hint, "__supertype__"):
        return sample(hint.__supertype__)
    if origin is list:
        return [sample(arguments[0])] * 2
    if origin is dict:
        return {sample(arguments[0]): sample(arguments[1])}
    if issubclass(hint, Enum):
        return next(iter(hint))
    if issubclass(hint, JsonBody | Header):
        hints = get_type_hints(hint, include_extras=True)
        return hint(**{field.name: sample(hints[field.name]) for field in fields(hint)})
    return {int: 7, float: 0.5, bool: True, str: "text", MessageQueue: _QUEUE}[hint]


def subclasses(base: type[Any], *modules: object) -> list[type[Any]]:
    found = [kind for module in modules for _, kind in inspect.getmembers(module, inspect.isclass)]
    return sorted({one for one in found if issubclass(one, base) and one is not base}, key=lambda one: one.__name__)


def of_text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(data.decode("utf-8", "replace"))


def body_decoder(kind: type[JsonBody]) -> Decoder:
    full = sample(kind)
    return Decoder(kind.__name__, kind.decode, (full.encode(), full.encode(quoted_ids=True), b"{}"))


def header_decoder(kind: type[Header]) -> Decoder:
    names, values = zip(*sample(kind).encode().items(), strict=True) if fields(kind) else ((), ())

    def decode(data: bytes) -> object:
        return kind.decode(dict(zip(names, data.decode("utf-8", "replace").split("\n"), strict=False)))

    return Decoder(kind.__name__, decode, ("\n".join(values).encode() or b" ",))


def read_message(data: bytes) -> None:
    """Decode a record, and all that is decoded on demand."""
    decode_records(data)
    message = decode_record(data)
    for name in ("topic", "properties", "user_properties", "tags", "keys", "message_id", "offset_message_id"):
        getattr(message, name)
    for name in ("body", "born_host", "store_host"):
        with suppress(TriomqError):
            getattr(message, name)
    repr(message)


def match_sql(text: str) -> None:
    SqlFilter.parse(text).matches(b"a\x015\x02b\x01text\x02c\x01TRUE")


def read_queues(body: bytes) -> None:
    publish_queues("T", read_route(body))


def answer_to_a_send(text: str) -> None:
    read_send_result(SendStatus.SEND_OK, "id", _QUEUE, dict(zip(("queueId", "queueOffset", "msgId"), text.split("\n"))))  # noqa: B905


def record(body: bytes, sys_flag: int = 0) -> bytes:
    return encode_record(
        queue_id=1, queue_offset=2, physical_offset=3, sys_flag=sys_flag, born_timestamp=4, born_host=_HOST,
        store_timestamp=5, store_host=_HOST, body=body, topic=b"Topic",
        properties=b"KEYS\x01a b\x02TAGS\x01T\x02UNIQ_KEY\x01C0A8\x02",
    )  # fmt: skip


def compressed(kind: int) -> Decoder:
    seeds = (compress(b"some text, some text " * 9, kind), compress(bytes(10_000), kind))
    return Decoder(f"decompress-{kind:#x}", lambda data: decompress(data, kind | 1, 100_000), seeds)


def registered() -> bytes:
    version, line = b'{"counter":1,"timestamp":2}', b"Topic 4 4 6 SINGLE_TAG"
    parts = len(version).to_bytes(4) + version + (1).to_bytes(4) + len(line).to_bytes(4) + line
    return zlib.compress(parts)


def topics_of(data: bytes) -> object:
    return finish(route.read_registration(data, compressed=True))


def inflated(data: bytes) -> object:
    """Most mutations of compressed bytes end at the checksum: mutate the decompressed bytes."""
    return topics_of(zlib.compress(data))


_ROUTE: Final = route.TopicRouteData(
    "b:4;c:4", [route.QueueData("b", 4, 4, 6)], [route.BrokerData("C", "b", {0: "10.0.0.1:10911", 1: "[::1]:10911"})]
)
_ACL: Final = b"""globalWhiteRemoteAddresses:
- 10.10.103.*
- 192.168.0.1-10
accounts:
- accessKey: RocketMQ
  secretKey: "12345678"
  whiteRemoteAddress: 10.0.0.{1,2}
  admin: false
  defaultTopicPerm: DENY
  topicPerms: [topicA=DENY, 'topicB=PUB|SUB']
"""
_ACCOUNT: Final = {"accessKey": "another", "secretKey": "another one"}
_SQL: Final = b"(a > 3 AND b IN ('x', 'text') OR NOT c IS NULL) AND a BETWEEN -1.5e3 AND 31 OR c = TRUE"
_TRACE: Final = "Pub 1700000000000 region group Topic ID tags keys 1.2.3.4:5 9 1 0 ID2 true".replace(" ", "\x01")

DECODERS: Final = (
    *map(body_decoder, subclasses(JsonBody, client, group_health, route, statistics)),
    *map(header_decoder, subclasses(Header, groups, messages, offsets, topics)),
    *map(compressed, (ZLIB, LZ4, ZSTD)),
    Decoder("frame", RemotingCommand.decode, tuple(FRAMES)),
    Decoder("fastjson", loads, (b'{"a":[1,{"b":null}],{"topic":"T","brokerName":"b","queueId":1}:5,7:"\\u00e9"}',)),
    Decoder("route", read_queues, (_ROUTE.encode(), _ROUTE.encode(quoted_ids=False))),
    Decoder("registration", topics_of, (registered(),)),
    Decoder("registration-inside", inflated, (zlib.decompress(registered()),)),
    Decoder("record", read_message, (record(b"body"), record(compress(b"body" * 9), 1), record(b"a") + record(b"b"))),
    Decoder("check-record", lambda data: check_record(data, 0, len(data), check_crc=True), (record(b"body"),)),
    Decoder("batch", decode_batch, (encode_batch([(0, b"one", b"a\x01b"), (1, b"two", b"")]),)),
    Decoder("properties", decode_properties, (b"KEYS\x01a b\x02TAGS\x01T\x02x\x01y\x02",)),
    Decoder("properties-text", of_text(read_properties), (b"a=1\nb : 2\n# no\n\\u00e9=\\n",)),
    Decoder("tags", of_text(TagFilter.parse), (b"A || B||C", b"*")),
    Decoder("tags-strictly", of_text(TagFilter.parse_strictly), (b"A || B||C",)),
    Decoder("sql", of_text(match_sql), (_SQL,)),
    Decoder("filter-type", of_text(lambda text: parse_filter("a", text)), (b"TAG", b"SQL92")),
    Decoder("acl", of_text(read_rules), (_ACL,)),
    Decoder("acl-change", of_text(lambda text: set_account(text, dict(_ACCOUNT))), (_ACL,)),
    Decoder("acl-pattern", of_text(parse_pattern), (b"10.0.0.*", b"192.168.0.1-10", b"10.0.0.{1,2}", b"fe80::{1,2}")),
    Decoder("credentials", of_text(parse_credentials), (b"accessKey: a\nsecretKey: 'b'\nsecurityToken: c\n",)),
    Decoder("trace", decode_trace, (f"{_TRACE}\x02{_TRACE}\x02".encode(),)),
    Decoder("recall-handle", of_text(RecallHandle.decode), (RecallHandle("T", "b", 1, "ID").encode().encode(),)),
    Decoder("message-id", of_text(parse_offset_message_id), (b"0A00000100002A9F00000000000000FF",)),
    Decoder("host", decode_host, (_HOST, encode_host("::1", 1))),
    Decoder("offset-table", lambda data: offset_entries(data, "T", "G"), (b'{"offsetTable":{"T@G":{0:5,"1":7}}}',)),
    Decoder("send-answer", of_text(answer_to_a_send), (b"1\n5\nID",)),
    Decoder("topic-name", of_text(validate_topic), (b"Topic", b"%RETRY%G")),
    Decoder("group-name", of_text(validate_group), (b"Group",)),
    Decoder("namespace", Namespace("N").unwrap_json, (b'{"topic":"N%T","group":["N%G"],"N%T@N%G":{"0":1}}',)),
)
BY_NAME: Final = {decoder.name: decoder for decoder in DECODERS}


def write_many_digits(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    data[at:at] = b"9" * rng.choice([10, 19, 20, 400, 5000])


def nest(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    data[at:at] = rng.choice([b"[", b"{", b"(", b'{"a":', b"{{", b"\\", b"NOT ", b"- "]) * rng.choice([2, 70, 3000])


MUTATIONS: Final = (
    flip_bits, write_an_edge, cut, cut_out, insert_garbage, repeat_a_part, write_many_digits, nest,
)  # fmt: skip


def spoiled(decoder: Decoder, seed: int, count: int) -> Iterator[bytes]:
    rng = random.Random(f"{decoder.name} {seed}")
    for _ in range(count):
        data = bytearray(rng.choice(decoder.seeds))
        for mutate in rng.choices(MUTATIONS, k=rng.choice([1, 1, 2, 3, 5])):
            if data:
                mutate(rng, data)
        yield bytes(data)


def reads(decoder: Decoder, data: bytes) -> bool:
    """Whether it is read; any error but ours leaves this."""
    began = time.process_time()
    try:
        decoder.decode(data)
    except TriomqError:
        return False
    finally:
        took_s = time.process_time() - began
        assert took_s < _LIMIT_S, f"{decoder.name}: {took_s:.1f} s for {data!r}"
    return True


@pytest.mark.parametrize("name", BY_NAME)
def test_damaged_input_is_decoded_or_triomq_error(name: str) -> None:
    decoder = BY_NAME[name]
    if not any(name.endswith(f"{kind:#x}") for kind in (LZ4, ZSTD)):  # may not be installed
        assert all(reads(decoder, seed) for seed in decoder.seeds)
    for data in spoiled(decoder, SEED, COUNT):
        reads(decoder, data)


def main(seconds: float) -> None:
    """Try other bytes until the time is over; prints how many each decoder got, and how many of them it read."""
    ends, seed = time.monotonic() + seconds, time.time_ns()
    print("seed", seed)
    tried, read = Counter[str](), Counter[str]()
    while time.monotonic() < ends:
        seed += 1
        for decoder in DECODERS:
            for data in spoiled(decoder, seed, COUNT // 4):
                try:
                    read[decoder.name] += reads(decoder, data)
                except BaseException:
                    print(decoder.name, data)
                    raise
            tried[decoder.name] += COUNT // 4
    for name, count in tried.items():
        print(f"{name:44} {count:9} tried {read[name]:9} read")
    print(f"{sum(tried.values())} inputs for {len(DECODERS)} decoders, nothing but errors of triomq")


if __name__ == "__main__":
    main(float(sys.argv[1]))
