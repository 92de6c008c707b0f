"""Address patterns beside Apache's own classes: what we accept, they accept and read alike."""

import random
import subprocess
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.interop.kit_driver import apache_classpath
from triomq.protocol.acl.addresses import parse_pattern
from triomq.protocol.errors import ConfigError

pytestmark = pytest.mark.jvm

PROGRAM: Final = Path(__file__).parent / "AddressVerdicts.java"
PATTERNS: Final = 20_000
SEED: Final = 26
LIMIT_S: Final = 120
SIMPLE: Final = (
    "*", "*.*.*.*", "*:*:*:*:*:*:*:*", "10.0.0.1", "10.0.0.1,10.0.0.3", "10.0.0.{1,3}", "10.0.0.1-20", "10.0.5-6.*",
    "10.1-2.*.*", "127.*.*.*", "fe80::1", "fe80::1,10.0.0.1,FE80::A", "fe80::{1,a}", "fe80::1:*", "fe80::1:10-20",
    "2::ac5:78:1-200:*", "2001:db8:1:2:*", "1:2:3:4:5:6:7:*", "1:2:3:4:5:6:7-9:*", "1:2:3:4:5:6:7:8", "::1:*", "::1",
    "127.*.0.5", "*.0.0.5", "127.0.0.1*", "10.0.0.0-0", "::*", "fe80::*", "1:2:3:1-5", "::ffff:10.0.0.1", "fe80::1-5:*",
)  # fmt: skip
ADDRESSES: Final = (
    "10.0.0.1", "10.0.0.3", "10.0.0.13", "10.0.0.20", "10.0.0.21", "10.0.5.0", "10.0.6.255", "10.0.7.1", "10.1.0.1",
    "10.2.9.9", "10.3.0.1", "110.1.0.1", "127.0.0.1", "127.9.8.7", "1.2.3.4", "fe80:0:0:0:0:0:0:1",
    "fe80:0:0:0:0:0:0:a",
    "fe80:0:0:0:0:0:1:1", "fe80:0:0:0:0:0:1:15", "fe80:0:0:0:0:0:1:ffff", "fe80:0:1:0:0:0:0:1", "2:0:0:0:ac5:78:100:9",
    "2:0:0:0:ac5:78:300:9", "2001:db8:1:2:0:0:0:1", "2001:db8:1:2:9:9:9:9", "2001:db8:1:3:0:0:0:1", "1:2:3:4:5:6:7:8",
    "1:2:3:4:5:6:7:9", "1:2:3:4:5:6:9:8", "1:2:3:5:5:6:7:8", "0:0:0:0:0:0:0:1", "0:0:0:0:0:0:1:5", "0:0:0:0:0:0:2:5",
)  # fmt: skip


def patterns() -> list[str]:
    """Simple ones, and what one or two random changes make of them."""
    choose = random.Random(SEED)
    made = list(SIMPLE)
    while len(made) < PATTERNS:
        text = choose.choice(SIMPLE)
        for _ in range(choose.choice((1, 1, 2))):
            at = choose.randrange(len(text) + 1)
            text = text[:at] + choose.choice("0123459afA.:*-,{}") + text[at + choose.randrange(3) :]
        made.append(text)
    return list(dict.fromkeys(made))


def verdict(pattern: str) -> str:
    try:
        found = parse_pattern(pattern)
    except ConfigError:
        return "refused"
    return "".join("1" if found.has(address) else "0" for address in ADDRESSES)


def test_patterns_mean_what_they_mean_to_apaches_broker() -> None:
    made = patterns()
    command = ["java", "-cp", apache_classpath("4.9.7"), str(PROGRAM)]
    text = "\n".join((" ".join(ADDRESSES), *made)) + "\n"
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    judged = done.stdout.splitlines()
    assert len(judged) == len(made)
    seen: Counter[str] = Counter()
    different = []
    for pattern, theirs in zip(made, judged, strict=True):
        ours = verdict(pattern)
        seen["accepted" if ours != "refused" else "refused by us" if theirs != "refused" else "refused"] += 1
        if ours not in ("refused", theirs):
            different.append(f"{pattern}\n  judge {theirs}\n  ours  {ours}")
    assert not different, "\n".join([f"{len(different)} of {len(made)}, {seen}", *different[:30]])
    assert seen["accepted"] > 1000, seen
