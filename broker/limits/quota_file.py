"""The file of quotas.

::

    default:                        # of each account, and of each address whose requests no account signs
      sends_per_s: 500
      out_bytes_per_s: 20MiB
    accounts:
      reports: {sends_per_s: 50}    # omitted quotas are those of default; null lifts one
    addresses:
      "10.0.*.*": {connections: 20} # of each of these addresses; the first matching pattern applies
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
_WHOLE_NUMBER: Final = re.compile(r"\d{1,15}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Limits:
    """Quotas of one account or address; ``None``: no limit.

    Attributes:
        sends_per_s: requests that store messages; a batch is one.
        in_bytes_per_s: of these requests.
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
