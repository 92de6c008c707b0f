"""The file of quotas is read completely, and its errors name the line."""

import re
from pathlib import Path

import pytest

from triomq.broker.limits.quota_file import Limits, read_quotas
from triomq.protocol.errors import ConfigError

FILE = """
default: {sends_per_s: 100, out_bytes_per_s: 2MiB}
accounts:
  reports: {sends_per_s: 0.5, connections: 0, out_bytes_per_s: null}
  12345678:
addresses:
  "10.0.1.*": {connections: 3}
  "10.0.*.*": {connections: 4, in_bytes_per_s: 1000}
"""
DEFAULT = Limits(sends_per_s=100, out_bytes_per_s=2 * 1024**2)


def test_entry_overrides_the_default() -> None:
    rules = read_quotas(FILE)
    assert rules.of_account("reports") == Limits(sends_per_s=0.5, connections=0)
    assert rules.of_account("12345678") == rules.of_account("another") == rules.of_address("::1") == DEFAULT
    assert rules.of_address("10.0.1.7").connections == 3  # the first that matches
    assert rules.of_address("10.0.2.7").connections == 4
    assert rules.of_address("10.1.2.7", Limits()) == Limits()


@pytest.mark.parametrize("text", ["", "# nothing", "default:", "accounts: {}"])
def test_file_without_quotas_limits_nothing(text: str) -> None:
    rules = read_quotas(text)
    assert rules.of_account("a") == rules.of_address("10.0.0.1") == Limits()


@pytest.mark.parametrize("name", ["configuration.md", "deployment.md"])
def test_examples_in_the_documents_are_valid(name: str) -> None:
    text = (Path(__file__).parents[4] / "docs" / name).read_text()
    (example,) = re.findall(r"```yaml\n(default:.*?)```", text, re.DOTALL)
    rules = read_quotas(example)
    assert None not in (rules.default.sends_per_s, rules.default.connections)
    assert rules.accounts


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [", "line 1: this is not YAML"),
        ("- a", "line 1: here belong the fields default, accounts"),
        ("defaults: {}", "line 1: there is no field 'defaults', only default, accounts, addresses"),
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
        ("topics: {T: {}}", "line 1: there is no field 'topics', only default, accounts, addresses"),
        (
            "default: {disk_share: 1}",
            "line 1: there is no field 'disk_share', only sends_per_s, in_bytes_per_s, out_bytes_per_s, connections",
        ),
        ("addresses:\n  10.0.0.0/8: {}", "line 2: address pattern '10.0.0.0/8'"),
        ('addresses: {"": {}}', "line 1: an address pattern is empty"),
    ],
)
def test_mistake_is_reported_with_its_line(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_quotas(text)
    assert reason in str(caught.value)
