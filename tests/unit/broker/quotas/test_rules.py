"""The file of quotas: what it may say, and where it is wrong."""

import re
from pathlib import Path

import pytest

from triomq.broker.quotas.rules import Limits, read_quotas
from triomq.protocol.errors import ConfigError

FILE = """
default: {sends_per_s: 100, out_bytes_per_s: 2MiB, disk_share: 0.5}
accounts:
  reports: {sends_per_s: 0.5, connections: 0, disk_share: null}
  12345678:
addresses:
  "10.0.1.*": {topics: 3}
  "10.0.*.*": {topics: 4, groups: 5, in_bytes_per_s: 1000}
topics:
  metrics: {disk_share: 0.25}
"""
DEFAULT = Limits(sends_per_s=100, out_bytes_per_s=2 * 1024**2, disk_share=0.5)


def test_an_entry_changes_the_default() -> None:
    rules = read_quotas(FILE)
    assert rules.of_account("reports") == Limits(sends_per_s=0.5, out_bytes_per_s=2 * 1024**2, connections=0)
    assert rules.of_account("12345678") == rules.of_account("another") == rules.of_address("::1") == DEFAULT
    assert rules.of_address("10.0.1.7").topics == 3  # the first that matches
    assert rules.of_address("10.0.2.7").topics == 4
    assert rules.of_address("10.1.2.7", Limits()) == Limits()
    assert dict(rules.topics) == {"metrics": Limits(disk_share=0.25)}


@pytest.mark.parametrize("text", ["", "# nothing", "default:", "accounts: {}", "topics: null"])
def test_a_file_may_limit_nothing(text: str) -> None:
    rules = read_quotas(text)
    assert rules.of_account("a") == rules.of_address("10.0.0.1") == Limits()
    assert not rules.has_shares


@pytest.mark.parametrize("name", ["configuration.md", "deployment.md"])
def test_the_examples_in_the_documents_can_be_read(name: str) -> None:
    text = (Path(__file__).parents[4] / "docs" / name).read_text()
    (example,) = re.findall(r"```yaml\n(default:.*?)```", text, re.DOTALL)
    rules = read_quotas(example)
    assert None not in (rules.default.sends_per_s, rules.default.disk_share)
    assert rules.accounts


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        (True, "default: {disk_share: 1}"),
        (True, "topics: {T: {disk_share: 0.1}}"),
        (True, "accounts: {a: {disk_share: 0.1}}"),
        (True, 'addresses: {"*": {disk_share: 0.1}}'),
        (False, "default: {sends_per_s: 1}\naccounts: {a: {disk_share: null}}"),
    ],
)
def test_bytes_are_counted_only_for_shares(shares: bool, text: str) -> None:
    assert read_quotas(text).has_shares is shares


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [", "line 1: this is not YAML"),
        ("- a", "line 1: here belong the fields default, accounts"),
        ("defaults: {}", "line 1: there is no field 'defaults', only default, accounts, addresses, topics"),
        ("\naccounts: [a]", "line 2: here belong accounts by name"),
        ("accounts:\n  a: {}\n  a: {}", "line 3: a is given twice"),
        ("accounts:\n  a: 5", "line 2: here belong the fields sends_per_s, in_bytes_per_s"),
        ("default: {sends: 5}", "line 1: there is no field 'sends'"),
        ("default: {sends_per_s: 0}", "line 1: sends_per_s must be a number above 0, not '0'; null lifts a quota"),
        ("default: {sends_per_s: -1}", "sends_per_s must be a number above 0"),
        ("default: {sends_per_s: .inf}", "sends_per_s must be a number above 0"),
        ("default: {sends_per_s: [1]}", "sends_per_s must be a number above 0"),
        ("default:\n  in_bytes_per_s: 5MB", "line 2: in_bytes_per_s must be bytes, or a number with KiB"),
        ("default: {out_bytes_per_s: 1.5}", "out_bytes_per_s must be bytes"),
        ("default: {connections: 1.5}", "connections must be a whole number, not '1.5'"),
        ("default: {topics: many}", "topics must be a whole number"),
        ("default: {disk_share: 30}", "disk_share must be at most 1, not '30'"),
        ("topics: {T: {sends_per_s: 1}}", "there is no field 'sends_per_s', only disk_share"),
        ("addresses:\n  10.0.0.0/8: {}", "line 2: address pattern '10.0.0.0/8'"),
        ('addresses: {"": {}}', "line 1: an address pattern is empty"),
    ],
)
def test_a_mistake_is_told_with_its_line(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_quotas(text)
    assert reason in str(caught.value)
