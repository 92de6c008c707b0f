"""Every binary layout in readable form: the specification that the fast code is tested against.

Only tests import this: ``construct`` takes 20 to 30 times as long as ``struct``, and 45 ms to import.  All numbers are
big-endian; nearly all are signed, because Java has no unsigned ones.

Source: wire.md 1.1, 2.3, 10.1, 10.7; store.md 2.1, 2.2, 3.1, 4.1, 4.2, 5.2.
"""

from typing import Any, Final

import construct as c

_BORN_HOST_V6: Final = 0x10
_STORE_HOST_V6: Final = 0x20

FRAME: Final = c.Struct(
    "length" / c.Int32sb,  # of everything after this field
    "serialize_type" / c.Int8ub,
    "header_length" / c.Int24ub,
    "header" / c.Bytes(c.this.header_length),
    "body" / c.Bytes(c.this.length - 4 - c.this.header_length),
)

ROCKETMQ_HEADER: Final = c.Struct(
    "code" / c.Int16sb,
    "language" / c.Int8ub,
    "version" / c.Int16sb,
    "opaque" / c.Int32sb,
    "flag" / c.Int32sb,
    "remark" / c.PascalString(c.Int32sb, "utf8"),  # empty = absent
    "ext_fields"
    / c.Prefixed(
        c.Int32sb,
        c.GreedyRange(c.Struct("key" / c.PascalString(c.Int16sb, "utf8"), "value" / c.PascalString(c.Int32sb, "utf8"))),
    ),
)


def _host(flag: int) -> Any:
    def address_length(context: Any) -> int:
        return 16 if context._.sys_flag & flag else 4  # _: the record around it

    return c.Struct("address" / c.Bytes(address_length), "port" / c.Int32sb)


RECORD: Final = c.Struct(
    "total_size" / c.Int32sb,  # of the whole record
    "magic" / c.Const(0xDAA320A7, c.Int32ub),
    "body_crc" / c.Int32sb,  # CRC-32 without its top bit
    "queue_id" / c.Int32sb,
    "flag" / c.Int32sb,
    "queue_offset" / c.Int64sb,
    "physical_offset" / c.Int64sb,
    "sys_flag" / c.Int32sb,
    "born_timestamp" / c.Int64sb,
    "born_host" / _host(_BORN_HOST_V6),
    "store_timestamp" / c.Int64sb,
    "store_host" / _host(_STORE_HOST_V6),
    "reconsume_times" / c.Int32sb,
    "prepared_transaction_offset" / c.Int64sb,
    "body" / c.Prefixed(c.Int32sb, c.GreedyBytes),
    "topic" / c.Prefixed(c.Int8sb, c.GreedyBytes),
    "properties" / c.Prefixed(c.Int16sb, c.GreedyBytes),
)

BLANK_RECORD: Final = c.Struct(
    "size" / c.Int32sb,  # from here to the end of the file
    "magic" / c.Const(0xCBD43194, c.Int32ub),
    "rest" / c.Bytes(c.this.size - 8),
)

PROPERTY: Final = c.Struct(
    "name" / c.NullTerminated(c.GreedyBytes, term=b"\x01"),
    "value" / c.NullTerminated(c.GreedyBytes, term=b"\x02", require=False),
)

BATCH_ENTRY: Final = c.Struct(
    "total_size" / c.Int32sb,
    "magic" / c.Int32sb,  # 0
    "body_crc" / c.Int32sb,  # 0: the broker computes it
    "flag" / c.Int32sb,
    "body" / c.Prefixed(c.Int32sb, c.GreedyBytes),
    "properties" / c.Prefixed(c.Int16sb, c.GreedyBytes),
)

CONSUME_QUEUE_UNIT: Final = c.Struct("physical_offset" / c.Int64sb, "size" / c.Int32sb, "tags_code" / c.Int64sb)

INDEX_HEADER: Final = c.Struct(
    "begin_timestamp" / c.Int64sb,
    "end_timestamp" / c.Int64sb,
    "begin_physical_offset" / c.Int64sb,
    "end_physical_offset" / c.Int64sb,
    "hash_slot_count" / c.Int32sb,  # slots in use
    "index_count" / c.Int32sb,  # number of the next unit; the first one is 1
)

INDEX_SLOT: Final = c.Int32sb  # the newest unit of its chain, 0 = none

INDEX_UNIT: Final = c.Struct(
    "key_hash" / c.Int32sb,
    "physical_offset" / c.Int64sb,
    "time_diff_s" / c.Int32sb,  # since the header's begin_timestamp
    "previous_unit" / c.Int32sb,  # in the same chain, 0 = none
)


def index_file(slots: int, units: int) -> Any:
    """Return the layout of a whole index file; unit 0 is never used."""
    return c.Struct("header" / INDEX_HEADER, "slots" / INDEX_SLOT[slots], "units" / INDEX_UNIT[units])


CHECKPOINT: Final = c.Struct(
    "physic_msg_timestamp" / c.Int64sb,
    "logics_msg_timestamp" / c.Int64sb,
    "index_msg_timestamp" / c.Int64sb,
    c.Padding(4096 - 24),
)
