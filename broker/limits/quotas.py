"""Quotas: how fast accounts and addresses send and read, and how many connections they have.

A request above a quota is refused before anything is done; the answer says after how long there is room again.  A
request counts for the account that signed it, otherwise for the address of its peer.  Patterns match whole addresses,
but IPv6 addresses of one /64 network with equal quotas count together.

The file::

    default:                        # of each account, and of each address whose requests no account signs
      sends_per_s: 500
      out_bytes_per_s: 20MiB
    accounts:
      reports: {sends_per_s: 50}    # omitted quotas are those of default; null lifts one
    addresses:
      "10.0.*.*": {connections: 20} # of each of these addresses; the first matching pattern applies
"""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import ceil
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import yaml

from triomq.broker.addresses import limited_host
from triomq.broker.watched_file import WatchedFiles, read_file
from triomq.protocol.acl.addresses import AddressSet, parse_pattern
from triomq.protocol.acl.yaml_nodes import compose, entries_of, error_at, fields_of, is_null
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import ConfigError, RefusedError
from triomq.protocol.event_log import EventLog

LOGGER: Final = logging.getLogger("triomq.broker.limits.quotas")

_SIZE: Final = re.compile(r"(\d{1,15})(KiB|MiB|GiB)?", re.ASCII)
_FACTORS: Final = {None: 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_NUMBER: Final = re.compile(r"\d{1,15}(\.\d{1,9})?", re.ASCII)
_WHOLE_NUMBER: Final = re.compile(r"\d{1,15}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Limits:
    """Quotas of one account or address; ``None``: no limit.

    Attributes:
        sends_per_s: requests that store messages; a batch is one.
        in_bytes_per_s: of these requests; of a message that is sent back also those of its copy.
        out_bytes_per_s: of all responses.
        connections: open ones; may be 0.
    """

    sends_per_s: float | None = None
    in_bytes_per_s: float | None = None
    out_bytes_per_s: float | None = None
    connections: float | None = None


NO_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class QuotaRules:
    """All quotas of a broker."""

    default: Limits = NO_LIMITS
    accounts: Mapping[str, Limits] = field(default_factory=dict)
    addresses: tuple[tuple[AddressSet, Limits], ...] = ()

    def of_account(self, account: str) -> Limits:
        """Return the quotas of an account."""
        return self.accounts.get(account, self.default)

    def of_address(self, host: str, default: Limits | None = None) -> Limits:
        """Return the quotas of an address, ``default`` (``None``: the rules' own) if no pattern matches it."""
        found = next((limits for addresses, limits in self.addresses if addresses.has(host)), default)
        return self.default if found is None else found


def read_quotas(text: str) -> QuotaRules:
    """Read the text of the file.

    Raises:
        ConfigError: the text is not YAML, or an entry is wrong; the error begins with the line.
    """
    root = compose(text)
    if root is None or is_null(root):
        return QuotaRules()
    found = fields_of(root, ("default", "accounts", "addresses"))
    default = _limits(found["default"]) if "default" in found else NO_LIMITS

    def section(name: str, what: str) -> dict[str, yaml.Node]:
        node = found.get(name)
        return {} if node is None or is_null(node) else entries_of(node, what)

    accounts, addresses = section("accounts", "accounts by name"), section("addresses", "quotas by address pattern")
    return QuotaRules(
        default,
        {name: _limits(node, default) for name, node in accounts.items()},
        tuple((_addresses(pattern, node), _limits(node, default)) for pattern, node in addresses.items()),
    )


def _addresses(pattern: str, node: yaml.Node) -> AddressSet:
    try:
        found = parse_pattern(pattern)
    except ConfigError as exc:
        raise error_at(node, str(exc)) from None
    if not found:
        raise error_at(node, "an address pattern is empty")
    return found


def _limits(node: yaml.Node, default: Limits = NO_LIMITS) -> Limits:
    if is_null(node):
        return default
    names = tuple(each.name for each in fields(Limits))
    return replace(default, **{name: _value(name, value) for name, value in fields_of(node, names).items()})


def _value(name: str, node: yaml.Node) -> float | None:
    if is_null(node):
        return None
    text = node.value if isinstance(node, yaml.ScalarNode) else ""
    if name == "connections":
        if not _WHOLE_NUMBER.fullmatch(text):
            raise error_at(node, f"{name} must be a whole number, not {text!r:.40}")
        return int(text)
    if "bytes" in name:
        size = _SIZE.fullmatch(text)
        value = float(int(size[1]) * _FACTORS[size[2]]) if size else 0.0
    else:
        value = float(text) if _NUMBER.fullmatch(text) else 0.0
    if value <= 0:
        unit = "bytes, or a number with KiB, MiB or GiB, above 0" if "bytes" in name else "a number above 0"
        raise error_at(node, f"{name} must be {unit}, not {text!r:.40}; null lifts a quota")
    return int(value) if value == int(value) else value


_BURST_MS: Final = 1000
#: Java and Go clients pause for 3 s after a refused pull: a shorter burst would keep them below their rate.
_OUT_BURST_MS: Final = 4000
_LEAST_WAIT_MS: Final = 100  # else waiting clients retry for every single message
_MOST_WAIT_MS: Final = 3_600_000
_CONNECTIONS_WAIT_MS: Final = 1000
_MAX_IDLE: Final = 1024  # users that are remembered although they use nothing


@dataclass(slots=True, eq=False)
class Bucket:
    """Room that refills at a steady rate, at first an unlimited one; it holds as much as refills in ``_burst_ms``.

    A request passes if any room is left, whatever its size, and may leave a debt, so that the next one waits for
    longer.  Otherwise small requests would always get the room that a large one waits for.
    """

    _burst_ms: float
    _cost_ms: float = 0.0  # of one unit
    _full_at_ms: float = 0.0

    def set_rate(self, per_s: float | None) -> None:
        """Change the rate; ``None`` lifts the limit and cancels a debt."""
        self._cost_ms = 0.0 if per_s is None else 1000 / per_s
        if per_s is None:
            self._full_at_ms = 0.0

    def wait_ms(self, now_ms: float, own_units: float = 0) -> float:
        """Return the time until there is room; below 0: there is room now.  ``own_units`` in use count as room."""
        return self._full_at_ms - own_units * self._cost_ms - now_ms - self._burst_ms

    def take(self, units: float, now_ms: float) -> None:
        """Use some room."""
        self._full_at_ms = max(self._full_at_ms, now_ms) + units * self._cost_ms

    def is_full(self, now_ms: float) -> bool:
        """Whether nothing is in use."""
        return self._full_at_ms <= now_ms


@dataclass(slots=True, eq=False)
class Usage:
    """What an account, or an address whose requests no account signed, uses at the moment.

    Attributes:
        account: its name; "" for an address.
        host: the first address that it was made for; "" for an account.
        clock_ms: a steady clock.
        connections: those whose newest request counts here.
        limits: its quotas.
    """

    account: str
    host: str
    clock_ms: Callable[[], float]
    connections: int = 0
    limits: Limits = NO_LIMITS
    _sends: Bucket = field(default_factory=lambda: Bucket(_BURST_MS))
    _in_bytes: Bucket = field(default_factory=lambda: Bucket(_BURST_MS))
    _out_bytes: Bucket = field(default_factory=lambda: Bucket(_OUT_BURST_MS))

    def set_limits(self, limits: Limits) -> None:
        """Apply other quotas from now on."""
        self.limits = limits
        self._sends.set_rate(limits.sends_per_s)
        self._in_bytes.set_rate(limits.in_bytes_per_s)
        self._out_bytes.set_rate(limits.out_bytes_per_s)

    def send(self, size_bytes: int) -> None:
        """Count a request that stores messages.

        Raises:
            RefusedError: a quota is used up; the request counts for nothing.
        """
        now_ms = self.clock_ms()
        if (wait_ms := self._sends.wait_ms(now_ms)) >= 0:
            raise self.refused("sends_per_s", wait_ms)
        if (wait_ms := self._in_bytes.wait_ms(now_ms)) >= 0:
            raise self.refused("in_bytes_per_s", wait_ms)
        self._sends.take(1, now_ms)
        self._in_bytes.take(size_bytes, now_ms)

    def copy(self, size_bytes: int, request_bytes: int) -> None:
        """Count a message that a request stores again, besides the ``request_bytes`` that it was counted with.

        Raises:
            RefusedError: the quota was used up meanwhile by other requests.
        """
        now_ms = self.clock_ms()
        if (wait_ms := self._in_bytes.wait_ms(now_ms, request_bytes)) >= 0:
            raise self.refused("in_bytes_per_s", wait_ms)
        self._in_bytes.take(size_bytes, now_ms)

    def read(self) -> None:
        """Check a request that is answered with messages.

        Raises:
            RefusedError: a quota is used up.
        """
        if (wait_ms := self._out_bytes.wait_ms(self.clock_ms())) >= 0:
            raise self.refused("out_bytes_per_s", wait_ms)

    def may_read(self) -> bool:
        """Whether messages may be delivered now."""
        return self._out_bytes.wait_ms(self.clock_ms()) < 0

    def wrote(self, size_bytes: int) -> None:
        """Count bytes written to a connection."""
        self._out_bytes.take(size_bytes, self.clock_ms())

    def is_idle(self, now_ms: float) -> bool:
        """Whether it uses nothing, so that it can be forgotten."""
        buckets = self._sends, self._in_bytes, self._out_bytes
        return not self.connections and all(bucket.is_full(now_ms) for bucket in buckets)

    def refused(self, quota: str, wait_ms: float) -> RefusedError:
        """Return the error for a quota that is used up and has room again in ``wait_ms``."""
        user = f"account {self.account}" if self.account else f"address {limited_host(self.host)}"
        text = f"the {user} has used up its quota {quota}, {getattr(self.limits, quota)}: try again later"
        after_ms = min(max(ceil(wait_ms), _LEAST_WAIT_MS), _MOST_WAIT_MS)
        return RefusedError(text, ResponseCode.SYSTEM_BUSY, limit=quota, retry_after_ms=after_ms)


class Peer(Protocol):
    """A connection whose requests count for an account or an address."""

    peer_ip: str
    closed: bool
    usage: Usage | None


class _Key(NamedTuple):
    account: str
    host: str
    limits: Limits


class Quotas(WatchedFiles[QuotaRules]):
    """The quotas in force, and the usage of each account and address.

    Attributes:
        rules: the quotas in force.
    """

    def __init__(self, path: Path, clock_ms: Callable[[], float], *, has_accounts: bool) -> None:
        """Limit nothing until :meth:`load`.

        Args:
            path: the file of quotas.
            clock_ms: a steady clock.
            has_accounts: whether accounts sign the requests.
        """
        super().__init__(path, EventLog(LOGGER, "quotas not read again, the old ones stay in force: %s"))
        self.rules = QuotaRules()
        self._clock_ms = clock_ms
        self._has_accounts = has_accounts
        self._usages: dict[_Key, Usage] = {}
        self._sweep_at = _MAX_IDLE

    def _read(self) -> QuotaRules:
        try:
            return self._parse(read_file(self.path))
        except ConfigError as exc:
            raise ConfigError(f"{self.path}: {exc}") from None

    def _parse(self, text: str | None) -> QuotaRules:
        if text is None and self.readings:
            raise ConfigError("there is no such file")
        return read_quotas(text or "")

    def _use(self, content: QuotaRules) -> None:
        self.rules = content
        usages, self._usages = self._usages.values(), {}
        for usage in usages:
            key = self._key(usage.account, usage.host)
            usage.set_limits(key.limits)
            self._usages[key] = usage

    def _key(self, account: str, host: str) -> _Key:
        if account:
            return _Key(account, "", self.rules.of_account(account))
        return _Key("", limited_host(host), self.rules.of_address(host))

    def connections_of(self, host: str) -> float | None:
        """Return the quota of connections of an address; ``None``: no limit.

        With accounts the default quotas are those of accounts, so that only an entry for the address limits it.
        """
        return self.rules.of_address(host, NO_LIMITS if self._has_accounts else None).connections

    def join(self, peer: Peer, account: str) -> None:
        """Count the requests of a connection for an account, or for its address if ``account`` is "".

        Raises:
            RefusedError: the account has too many connections; those of addresses are checked when they are accepted.
        """
        before = peer.usage
        if before is not None and before.account == account:
            return
        usage = self._usage(account, peer.peer_ip)
        most = usage.limits.connections if account else None
        if most is not None and usage.connections >= most:
            raise usage.refused("connections", _CONNECTIONS_WAIT_MS)
        if not peer.closed:
            leave(peer)
            usage.connections += 1
        peer.usage = usage

    def _usage(self, account: str, host: str) -> Usage:
        key = self._key(account, host)
        usage = self._usages.get(key)
        if usage is None:
            if len(self._usages) >= self._sweep_at:
                now_ms = self._clock_ms()
                self._usages = {key: each for key, each in self._usages.items() if not each.is_idle(now_ms)}
                self._sweep_at = _MAX_IDLE + 2 * len(self._usages)
            usage = self._usages[key] = Usage(account, "" if account else host, self._clock_ms)
            usage.set_limits(key.limits)
        return usage


def leave(peer: Peer) -> None:
    """Stop counting a connection."""
    if peer.usage is not None:
        peer.usage.connections -= 1
        peer.usage = None
