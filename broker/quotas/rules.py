"""Reads the file of quotas.

::

    default:                        # each account; each address, if nobody signed the request
      sends_per_s: 500
      out_bytes_per_s: 20MiB
    accounts:
      reports: {sends_per_s: 50}    # what is left out is as in default; null lifts it
    addresses:
      "10.0.*.*": {connections: 20} # each of these addresses; the first pattern that matches counts
    topics:
      metrics: {disk_share: 0.3}
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final

import yaml

from triomq.protocol.acl.addresses import AddressSet, parse_pattern
from triomq.protocol.acl.yaml_nodes import compose, entries_of, error_at, fields_of, is_null
from triomq.protocol.errors import ConfigError

_SIZE: Final = re.compile(r"(\d{1,15})(KiB|MiB|GiB)?", re.ASCII)
_FACTORS: Final = {None: 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_NUMBER: Final = re.compile(r"\d{1,15}(\.\d{1,9})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Limits:
    """Quotas of one account, address or topic; ``None``: no limit.

    Attributes:
        sends_per_s: requests that store messages; a batch is one.
        in_bytes_per_s: of these requests.
        out_bytes_per_s: of all answers.
        connections: open ones.
        topics, groups: that exist and that it has created.
        disk_share: part of the room for the commit log, above 0 and at most 1.
    """

    sends_per_s: float | None = None
    in_bytes_per_s: float | None = None
    out_bytes_per_s: float | None = None
    connections: float | None = None
    topics: float | None = None
    groups: float | None = None
    disk_share: float | None = None


_NAMES: Final = tuple(each.name for each in fields(Limits))
_COUNTS: Final = ("connections", "topics", "groups")  # they may be 0


@dataclass(frozen=True, slots=True)
class QuotaRules:
    """All quotas of a broker."""

    default: Limits = Limits()
    accounts: Mapping[str, Limits] = field(default_factory=dict)
    addresses: tuple[tuple[AddressSet, Limits], ...] = ()
    topics: Mapping[str, Limits] = field(default_factory=dict)

    def of_account(self, account: str) -> Limits:
        """Return the quotas of an account."""
        return self.accounts.get(account, self.default)

    def of_address(self, host: str, default: Limits | None = None) -> Limits:
        """Return the quotas of an address; ``default``: of one that has none of its own."""
        found = next((limits for addresses, limits in self.addresses if addresses.has(host)), default)
        return self.default if found is None else found

    @property
    def has_shares(self) -> bool:
        """Whether it matters who fills the disk."""
        owners = (self.default, *self.accounts.values(), *(limits for _, limits in self.addresses))
        return any(limits.disk_share is not None for limits in (*owners, *self.topics.values()))


def read_quotas(text: str) -> QuotaRules:
    """Read the file's text.

    Raises:
        ConfigError: it is no YAML, or something in it is wrong; the text begins with the line.
    """
    root = compose(text)
    if root is None or is_null(root):
        return QuotaRules()
    found = fields_of(root, ("default", "accounts", "addresses", "topics"))
    default = _limits(found["default"]) if "default" in found else Limits()

    def section(name: str, what: str) -> dict[str, yaml.Node]:
        node = found.get(name)
        return {} if node is None or is_null(node) else entries_of(node, what)

    accounts, addresses = section("accounts", "accounts by name"), section("addresses", "quotas by address pattern")
    topics = section("topics", "topics by name")
    return QuotaRules(
        default,
        {name: _limits(node, default) for name, node in accounts.items()},
        tuple((_addresses(pattern, node), _limits(node, default)) for pattern, node in addresses.items()),
        {name: _limits(node, names=("disk_share",)) for name, node in topics.items()},
    )


def _addresses(pattern: str, node: yaml.Node) -> AddressSet:
    try:
        found = parse_pattern(pattern)
    except ConfigError as exc:
        raise error_at(node, str(exc)) from None
    if not found:
        raise error_at(node, "an address pattern is empty")
    return found


def _limits(node: yaml.Node, default: Limits = Limits(), names: tuple[str, ...] = _NAMES) -> Limits:
    if is_null(node):
        return default
    values = {name: _value(name, value) for name, value in fields_of(node, names).items()}
    return replace(default, **values)


def _value(name: str, node: yaml.Node) -> float | None:
    if is_null(node):
        return None
    text = node.value if isinstance(node, yaml.ScalarNode) else ""
    if "bytes" in name:
        size = _SIZE.fullmatch(text)
        value = float(int(size[1]) * _FACTORS[size[2]]) if size else -1.0
    else:
        value = float(text) if _NUMBER.fullmatch(text) else -1.0
    if name in _COUNTS:
        if value < 0 or value != int(value):
            raise error_at(node, f"{name} must be a whole number, not {text!r:.40}")
    elif value <= 0:
        unit = "bytes, or a number with KiB, MiB or GiB, above 0" if "bytes" in name else "a number above 0"
        raise error_at(node, f"{name} must be {unit}, not {text!r:.40}; null lifts a quota")
    if name == "disk_share" and value > 1:
        raise error_at(node, f"disk_share must be at most 1, not {text!r:.40}")
    return int(value) if value == int(value) else value
