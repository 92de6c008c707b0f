"""The quotas of a broker: what is above one is refused before anything is done.

A request counts for the account that signed it, else for the address of its peer.  Rates, connections and disk shares
come free with time, so the answer is SYSTEM_BUSY and says when; topics and groups do not.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from math import ceil, inf
from pathlib import Path
from typing import Final, Protocol

from triomq.broker.quotas.holdings import Holdings
from triomq.broker.quotas.rules import Limits, QuotaRules, read_quotas
from triomq.broker.quotas.usage import Usage
from triomq.broker.saved_table import ConfigTable, SavedTable
from triomq.broker.watched_file import WatchedFile
from triomq.protocol.bodies.route import SubscriptionGroupConfig, TopicConfig
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import ConfigError, RefusedError, StoreError
from triomq.protocol.event_log import EventLog
from triomq.storage.files.file_system import FileSystem, translated
from triomq.storage.files.json_table import JsonTable
from triomq.storage.message_store import MessageStore
from triomq.storage.retention import log_room_bytes

LOGGER: Final = logging.getLogger("triomq.broker.quotas.quotas")

_LEAST_WAIT_MS: Final = 100  # so that those who wait do not come back for each place
_MOST_WAIT_MS: Final = 3_600_000
_DISK_WAIT_MS: Final = 10_000  # old files are deleted at such intervals
_CONNECTIONS_WAIT_MS: Final = 1000
_MAX_IDLE: Final = 1024  # owners that are remembered without a need
_NO_LIMITS: Final = Limits()


class Peer(Protocol):
    """Who sends requests."""

    peer_ip: str
    closed: bool
    usage: Usage | None


class Quotas(WatchedFile[QuotaRules]):
    """The file of quotas, and who uses how much.

    Attributes:
        rules: what counts now.
        holdings: what is kept across restarts.
        current: who sent the request that is being served.
    """

    def __init__(
        self, path: Path, store: MessageStore, clock_ms: Callable[[], float], accounts: object | None = None
    ) -> None:
        """Nothing is limited until :meth:`load`; ``clock_ms`` is a steady clock, ``accounts`` are the broker's."""
        super().__init__(path, EventLog(LOGGER, "quotas not read again, the old ones stay in force: %s"))
        self.rules = QuotaRules()
        self.holdings: Final = Holdings(JsonTable(store.config.root / "config" / "quotas.json", store.file_system))
        self.current: Usage | None = None
        self._store = store
        self._clock_ms = clock_ms
        self._has_accounts = accounts is not None
        self._usages: dict[tuple[str, str], Usage] = {}
        self._sweep_at = _MAX_IDLE
        self._counts_bytes = False
        self._room_bytes = inf

    def load(self) -> None:
        """Read file and table at the start.

        Raises:
            ConfigError: the file does not exist, cannot be read, or is wrong; the text names file and line.
            StoreLayoutError: the table cannot be read.
        """
        self.holdings.load()
        super().load()
        self._measure()

    async def look(self) -> None:
        """Read the file if it changed, and measure the room for the commit log."""
        await super().look()
        self._measure()

    def _measure(self) -> None:
        log, config = self._store.commit_log, self._store.config
        self.holdings.restrict(log.min_offset, log.max_offset)
        if self._counts_bytes:
            try:
                with translated("measure the disk of", config.root):
                    disk = FileSystem().space(config.root)
            except StoreError:  # retention reports it
                return
            self._room_bytes = log_room_bytes(config, log.max_offset - log.files.start, disk)

    def _parse(self, text: str | None) -> QuotaRules:
        if text is None and self.readings:
            raise ConfigError("there is no such file")
        return read_quotas(text or "")

    def _use(self, content: QuotaRules) -> None:
        self.rules = content
        self._counts_bytes = content.has_shares
        for usage in self._usages.values():
            usage.set_limits(self._limits(usage))

    def _limits(self, usage: Usage) -> Limits:
        return self.rules.of_account(usage.account) if usage.account else self.rules.of_address(usage.host)

    # --- connections ------------------------------------------------------------------------------------

    def connections_of(self, host: str) -> float | None:
        """Return how many connections an address may have, ``None``: its quotas do not say."""
        return self.rules.of_address(host, _NO_LIMITS if self._has_accounts else None).connections

    def join(self, peer: Peer, account: str) -> None:
        """Let requests of a connection count for an account, or for its address if that is "".

        Raises:
            RefusedError: the account has too many connections; those of an address were checked before.
        """
        before = peer.usage
        if before is not None and before.account == account:
            return
        usage = self._usage(account, peer.peer_ip)
        most = usage.limits.connections if account else None
        if most is not None and usage.connections >= most:
            raise _above(usage.name, "connections", most, _CONNECTIONS_WAIT_MS)
        if not peer.closed:
            self.leave(peer)
            usage.connections += 1
        peer.usage = usage

    def leave(self, peer: Peer) -> None:
        """Count a connection for nobody."""
        if peer.usage is not None:
            peer.usage.connections -= 1
            peer.usage = None

    def _usage(self, account: str, host: str) -> Usage:
        key = account, "" if account else host
        usage = self._usages.get(key)
        if usage is None:
            if len(self._usages) >= self._sweep_at:
                now_ms = self._clock_ms()
                self._usages = {key: each for key, each in self._usages.items() if not each.is_idle(now_ms)}
                self._sweep_at = _MAX_IDLE + 2 * len(self._usages)
            usage = self._usages[key] = Usage(account, host, self._clock_ms)
            usage.set_limits(self._limits(usage))
        return usage

    # --- rates and disk ---------------------------------------------------------------------------------

    def send(self, usage: Usage, topic: str, size_bytes: int) -> None:
        """Let a request pass that stores messages.

        Raises:
            RefusedError: a quota is used up.
        """
        now_ms, limits = self._clock_ms(), usage.limits
        if (wait_ms := usage.sends.wait_ms(now_ms)) >= 0:
            raise _above(usage.name, "sends_per_s", limits.sends_per_s, wait_ms)
        if (wait_ms := usage.in_bytes.wait_ms(now_ms)) >= 0:
            raise _above(usage.name, "in_bytes_per_s", limits.in_bytes_per_s, wait_ms)
        if self._counts_bytes:
            self._check_share(usage.name, limits)
            self._check_share(_holder(topic), self.rules.topics.get(topic, _NO_LIMITS))
        usage.sends.take(1, now_ms)
        usage.in_bytes.take(size_bytes, now_ms)

    def _check_share(self, name: str, limits: Limits) -> None:
        if limits.disk_share is not None:
            held = self.holdings.held_bytes[name]
            if held >= limits.disk_share * self._room_bytes:
                share = f"{limits.disk_share} of {self._room_bytes} bytes for the commit log, with {held}"
                raise _above(name, "disk_share", share, _DISK_WAIT_MS)

    def stored(self, usage: Usage, topic: str, size_bytes: int) -> None:
        """Count bytes at the end of the commit log."""
        if self._counts_bytes:
            owners = [usage.name] if usage.limits.disk_share is not None else []
            if topic in self.rules.topics:
                owners.append(_holder(topic))
            if owners:
                log = self._store.commit_log
                self.holdings.stored(log.max_offset - log.max_offset % log.files.file_size, size_bytes, owners)

    def read(self, usage: Usage) -> None:
        """Let a request pass that is answered with messages.

        Raises:
            RefusedError: a quota is used up.
        """
        if not usage.may_read():
            wait_ms = usage.out_bytes.wait_ms(self._clock_ms())
            raise _above(usage.name, "out_bytes_per_s", usage.limits.out_bytes_per_s, wait_ms)

    # --- topics and groups ------------------------------------------------------------------------------

    def limit(self, topics: ConfigTable[TopicConfig], groups: ConfigTable[SubscriptionGroupConfig]) -> SavedTable:
        """Check who creates topics and groups; returns the table that has to be saved for that."""
        topics.may_create = partial(self.create, "topics")
        groups.may_create = partial(self.create, "groups")
        return self.holdings

    def create(self, kind: str, existing: Mapping[str, object], name: str) -> None:
        """Let whoever sent the current request create a topic or group.

        Raises:
            RefusedError: it has created too many of those that exist.
        """
        usage = self.current
        most = None if usage is None else getattr(usage.limits, kind)
        if usage is None or most is None:
            return
        names = self.holdings.created_by(usage.name, kind)
        if name not in names and len(names) >= most:
            names -= {each for each in names if each not in existing}
            if len(names) >= most:
                raise _above(usage.name, kind, most)
        names.add(name)


def _holder(topic: str) -> str:
    return f"topic {topic}"


def _above(name: str, quota: str, limit: object, wait_ms: float | None = None) -> RefusedError:
    text = f"the {name} has used up its quota {quota}, {limit}"
    if wait_ms is None:
        return RefusedError(f"{text}: delete some that nobody uses", limit=quota)
    after_ms = min(max(ceil(wait_ms), _LEAST_WAIT_MS), _MOST_WAIT_MS)
    return RefusedError(f"{text}: try again later", ResponseCode.SYSTEM_BUSY, limit=quota, retry_after_ms=after_ms)
