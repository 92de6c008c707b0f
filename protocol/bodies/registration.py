"""The body of REGISTER_BROKER (103): the topics of a broker.

Source: wire.md 9.7; RegisterBrokerBody.java, TopicConfig.java.
"""

import struct
import zlib
from collections.abc import Generator
from dataclasses import dataclass, field
from struct import Struct
from typing import ClassVar, Final, TypeAlias

from triomq.protocol.bodies.json_body import JsonBody
from triomq.protocol.bodies.route import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from triomq.protocol.errors import ProtocolError
from triomq.protocol.record.compression import inflate

_LENGTH: Final = Struct(">i")
_MAX_BYTES: Final = 64 * 1024**2


@dataclass(slots=True)
class RegisterBrokerBody(JsonBody):
    """The plain form.  Source: RegisterBrokerBody.java."""

    irregular: ClassVar = True  # 5.x: queue mappings of static topics
    max_irregular_bytes: ClassVar = 12 * 1024  # some 20 ms: anybody can send one

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = field(default_factory=TopicConfigSerializeWrapper)
    filter_server_list: list[str] = field(default_factory=list)


def registration_crc(body: bytes | memoryview) -> int:
    """Return the checksum of a body as it is sent; Java's is never negative."""
    return zlib.crc32(body) & 0x7FFF_FFFF


Reading: TypeAlias = Generator[tuple[()], None, TopicConfigSerializeWrapper]
"""Yields nothing, at each place where it may pause."""


def read_registration(body: bytes | memoryview, *, compressed: bool) -> Reading:
    """Return the topics of a registration; none for an empty body.

    Raises:
        ProtocolError: damaged, or more than 64 MiB.
    """
    if compressed and body:
        try:
            return (yield from _read_compressed(inflate(bytes(body), _MAX_BYTES)))
        except (struct.error, ValueError) as exc:
            raise ProtocolError(f"compressed registration: {exc}") from exc
    topics: dict[str, TopicConfig] = {}
    version = DataVersion()
    for part in RegisterBrokerBody.parts(body, "topicConfigSerializeWrapper", "topicConfigTable") if body else ():
        topics |= part.topic_config_serialize_wrapper.topic_config_table
        version = part.topic_config_serialize_wrapper.data_version
        yield ()
    return TopicConfigSerializeWrapper(topics, version)


def _read_compressed(content: bytes) -> Reading:
    """Read the version and a line for each topic; what follows, also of 5.x brokers, means nothing here."""
    version, position = _part(content, 0)
    (count,) = _LENGTH.unpack_from(content, position)
    position += _LENGTH.size
    topics = {}
    for _ in range(count):
        line, position = _part(content, position)
        name, read_queues, write_queues, perm, *_ = line.decode().split(" ")
        topics[name] = TopicConfig(name, int(read_queues), int(write_queues), int(perm))
        yield ()
    return TopicConfigSerializeWrapper(topics, DataVersion.decode(version))


def _part(content: bytes, position: int) -> tuple[bytes, int]:
    """Return the part that follows its length, and the position after it."""
    (length,) = _LENGTH.unpack_from(content, position)
    begin = position + _LENGTH.size
    if not 0 <= length <= len(content) - begin:
        raise ValueError(f"a part of {length} bytes at {position} of {len(content)}")
    return content[begin : begin + length], begin + length
