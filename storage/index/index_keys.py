"""From the commit log to what an index file gets: the keys of records, read where they lie.

Indexed are the unique key that the client gave a message, and then each word of its keys.  Source: store.md 4.4.
"""

from typing import Final

from triomq.protocol.codes import MessageSysFlag
from triomq.protocol.record.index_unit import KEY_WIDTH, key_hash, topic_share
from triomq.protocol.record.layout import HEAD, HOST_V6_BITS, MESSAGE_MAGIC, MIN_RECORD_BYTES, head_struct
from triomq.protocol.record.properties import get_property
from triomq.protocol.record.record import RecordKind
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.commit_log.log_scan import LogScan
from triomq.storage.files.mapped_file import MappedFile

_UNIQUE_KEY: Final = b"UNIQ_KEY"
_KEYS: Final = b"KEYS"
_UNIQUE_KEY_NEEDLE: Final = _UNIQUE_KEY + b"\x01"
_KEYS_NEEDLE: Final = _KEYS + b"\x01"
_PROPERTY_END: Final = b"\x02"
_END_BYTE: Final = 2
_NO_KEY: Final = b""  # adds nothing to a hash
_BODY_AT: Final = HEAD.size
_unpack_head = head_struct("size", "magic", "sys_flag", "store_timestamp", "body_length").unpack_from
_ROLLBACK: Final = int(MessageSysFlag.TRANSACTION_ROLLBACK)
_COMMIT: Final = int(MessageSysFlag.TRANSACTION_COMMIT)
_UNUSUAL_BITS: Final = HOST_V6_BITS | _ROLLBACK  # hosts that are IPv6, or part of a transaction but a commit
_MAX_TOPICS: Final = 10_000  # remembered at a time
_MAX_KEYS: Final = 256  # of one read, 0.5 ms; RocketMQ indexes all keys of a message, 16,000 and more


class IndexBatch:
    """Keys of records that follow one another in one commit log file, as columns of equal length.

    Attributes:
        end: where the next read starts.
        skip: keys of the record at ``end`` that this read, or one before it, has read; 0 for most.
        last_record: physical offset of the last record that was read, one without keys too; -1 without any.
        offsets: of each key the physical offset of its record.
        timestamps: likewise the store time, ms.
        keys, shares: likewise what ``key_hashes`` takes.
        damage: why a place that was passed holds no record, "" if all do.
    """

    def __init__(self, begin: int) -> None:
        self.end = begin
        self.last_record = -1
        self.offsets: list[int] = []
        self.timestamps: list[int] = []
        self.keys: list[bytes] = []
        self.shares: list[int] = []
        self.damage = ""
        self.skip = 0
        self.is_full = False


class KeyReader:
    """Reads keys out of a commit log."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._keys_of = b""  # properties of the record within which the last read ended
        self._keys: list[bytes] = []  # all of its keys, as finding many takes longer than indexing some of them
        self._shares_of: dict[bytes, tuple[int, ...]] = {}  # by topic, as records hold it, with its length

    def read(self, begin: int, end: int, max_records: int, stop: int | None = None, skip: int = 0) -> IndexBatch:
        """Return the keys of up to ``max_records`` records of one file, from ``begin`` on and before ``end``.

        A place without a record is passed over, up to the next record that proves itself.  A record that begins before
        ``stop`` is the last one if it ends there or after.  ``skip`` keys of the first record are left out; a read of
        many keys ends within a record.
        """
        batch = IndexBatch(begin)
        file = self._log.files.file_at(begin)
        if file is None or begin >= end:
            return batch
        limit = min(file.end, end) - file.start
        stop_at = limit if stop is None else min(stop - file.start, limit)
        at = begin - file.start
        left = max_records
        batch.skip = skip
        if skip and at < stop_at:
            at += self._pass_unusual(batch, file.start + at, limit - at)
        while left > 0 and at < stop_at and not batch.is_full:
            left, at = self._read_plain(batch, file, at, limit, stop_at, left)
            if left > 0 and at < stop_at and not batch.is_full:
                left -= 1
                at += self._pass_unusual(batch, file.start + at, limit - at)
        batch.end = file.start + at
        return batch

    def has_keys_between(self, after: int, end: int, max_records: int) -> bool:
        """Whether a record after the one at ``after``, -1 for none, and before ``end`` has keys.

        Looked at are ``max_records`` of one file and as many of the next one.
        """
        begin = max(after, self._log.min_offset)
        for _ in range(2):
            batch = self.read(begin, end, max_records)
            if any(offset > after for offset in batch.offsets):
                return True
            begin = batch.end
        return False

    def _read_plain(
        self, batch: IndexBatch, file: MappedFile, at: int, limit: int, stop_at: int, left: int
    ) -> tuple[int, int]:
        """Read ``left`` records, but stop before any place that holds no record with IPv4 hosts.

        Returns how many are left then, and where the next one begins.  All clients send unique keys of up to 56 ASCII
        characters, and few send other keys, so such a record is read here: calls would double its cost.
        """
        content, start, last_head = file.map, file.start, min(limit - MIN_RECORD_BYTES, stop_at - 1)
        shares_of = self._shares_of.get
        add_key, add_share = batch.keys.append, batch.shares.append
        add_offset, add_timestamp = batch.offsets.append, batch.timestamps.append
        while left and at <= last_head:
            size, magic, sys_flag, timestamp, body_length = _unpack_head(content, at)
            tail_at = at + _BODY_AT + body_length
            end = at + size
            if magic != MESSAGE_MAGIC or body_length < 0 or not tail_at < end <= limit:
                break
            if sys_flag & _UNUSUAL_BITS and sys_flag & _UNUSUAL_BITS != _COMMIT:
                break
            tail = content[tail_at:end]
            properties_at = tail[0] + 3
            before, found, after = tail.rpartition(_UNIQUE_KEY_NEEDLE)
            if found and tail.find(_KEYS_NEEDLE) < 0 and (before[-1] == _END_BYTE or len(before) == properties_at):
                key = after.partition(_PROPERTY_END)[0]
                shares = shares_of(tail[: properties_at - 2])
                length = len(key)
                if shares and 0 < length <= KEY_WIDTH and key.isascii():
                    add_key(key)
                    add_share(shares[length])
                    add_offset(start + at)
                    add_timestamp(timestamp)
                else:
                    self._add(batch, tail, start + at, timestamp)
            else:
                self._add(batch, tail, start + at, timestamp)
            batch.last_record = start + at
            if batch.is_full:
                break
            at = end
            left -= 1
        return left, at

    def _add(self, batch: IndexBatch, tail: bytes, physical_offset: int, timestamp: int) -> None:
        """Add keys of any record, up to the limit; ``tail`` is its end: topic and properties, each after its length."""
        topic = tail[: tail[0] + 1]
        properties = tail[tail[0] + 3 :]
        if properties == self._keys_of:
            keys = self._keys
        else:
            unique_key = get_property(properties, _UNIQUE_KEY)
            words = (get_property(properties, _KEYS) or b"").split(b" ")
            keys = [key for key in (words if unique_key is None else (unique_key, *words)) if key]
        first, last = batch.skip, batch.skip + max(_MAX_KEYS - len(batch.keys), 0)
        batch.is_full = last < len(keys)
        batch.skip = last if batch.is_full else 0
        self._keys_of, self._keys = (properties, keys) if batch.is_full else (b"", [])
        for key in keys[first:last]:
            if len(key) <= KEY_WIDTH and key.isascii():
                shares = self._shares_of.get(topic)
                if shares is None:
                    if len(self._shares_of) >= _MAX_TOPICS:
                        self._shares_of.clear()
                    shares = self._shares_of[topic] = topic_share(topic[1:].decode("utf-8", "replace"))
                batch.keys.append(key)
                batch.shares.append(shares[len(key)])
            else:
                batch.keys.append(_NO_KEY)
                batch.shares.append(key_hash(topic[1:].decode("utf-8", "replace"), key.decode("utf-8", "replace")))
            batch.offsets.append(physical_offset)
            batch.timestamps.append(timestamp)

    def _pass_unusual(self, batch: IndexBatch, physical_offset: int, left: int) -> int:
        """Read a place that holds no record with IPv4 hosts; return the distance to the next, ``left`` at most."""
        found = self._log.check(physical_offset, check_crc=False)
        if found.kind is RecordKind.BLANK:
            return left
        if found.kind is not RecordKind.MESSAGE or found.size > left:
            batch.damage = f"{found.reason or 'a record past the end'} at {physical_offset}"
            following = next(iter(LogScan(self._log, physical_offset, stop=physical_offset + left)), None)
            return following[0] - physical_offset if following is not None else left
        if found.sys_flag & _ROLLBACK != _ROLLBACK:
            topic = found.topic.encode()
            tail = b"".join((bytes((len(topic),)), topic, b"\0\0", found.properties))  # the length is not looked at
            self._add(batch, tail, physical_offset, found.store_timestamp)
        batch.last_record = physical_offset
        return 0 if batch.is_full else found.size
