"""Our verdicts on SQL filters beside those of Apache's own classes, for thousands of generated expressions."""

import random
import subprocess
from base64 import b64encode
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.interop.kit_driver import apache_classpath
from triomq.protocol.errors import SubscriptionParseError
from triomq.protocol.filters.filter_types import SqlFilter
from triomq.protocol.record.properties import encode_properties

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

PROGRAM: Final = Path(__file__).parent / "FilterVerdicts.java"
PAIRS: Final = 20_000
SEED: Final = 92
LIMIT_S: Final = 120

NAMES: Final = ("a", "b", "c", "missing", "_x$1", "TAGS")
VALUES: Final = (
    "5", "+5", "007", "-3", "5.0", " 5", " 5 ", "5d", "0x1p3", "1e3", ".5", "5.", "NaN", "-NaN", "Infinity", "-0.0",
    "0.0",
    "true", "TRUE", "false", "abc", "it's", "é", "\u0665", "\uff15", "\U0001d7d3", "1_0", "2147483647", "2147483648",
    "-2147483648", "1700000000000", "9223372036854775807", "9223372036854775808", "1e400", "+", "-", "0", "1.1f", "",
)  # fmt: skip
NUMBERS: Final = (
    "5", "0", "5L", "7", "007", "5.0", "5.", ".5", "1e3", "1.5E+2", "0.0", "1e400", "1e-400", "2147483647",
    "2147483648", "1700000000000", "9223372036854775807", "9223372036854775808", "5l", "3", "1000",
)  # fmt: skip
TEXTS: Final = ("'5'", "'abc'", "''", "'it''s'", "'é'", "'true'", "'5.0'", "'a b'", "'--'")
OPERATORS: Final = ("=", "<>", "<", "<=", ">", ">=")
TAILS: Final = (
    " garbage", " 5", ")", " LIKE 'x%'", " #", " ;", " .", " --", " -- x\n", " /* x */", " /* x", " IS", " NOT",
)  # fmt: skip


class Generator:
    """Makes expressions: most can be read, some are wrong in one place."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def expression(self) -> str:
        text = self.condition(self.random.choice((0, 1, 2, 3)))
        chance = self.random.random()
        if chance < 0.06:
            return text + self.random.choice(TAILS)
        if chance < 0.12:
            at = self.random.randrange(len(text) + 1)
            return text[:at] + self.random.choice(" ()'=<>,-+.x5#é\x0b") + text[at + self.random.randrange(2) :]
        return text

    def condition(self, depth: int) -> str:
        choose = self.random.choice
        if depth:
            left, right = self.condition(depth - 1), self.condition(depth - 1)
            return choose((
                f"{left} AND {right}", f"{left} or {right}", f"({left}) = ({right})", f"NOT ({left})", f"({left})",
                f"({left} OR {right}) AND {left}", f"({left}) = TRUE", f"-({left}) = 5", f"({left}) IS NULL",
                f"{left} /* and */ AND\t{right}", f"NOT {left} AND {right}",
            ))  # fmt: skip
        operand, name = self.operand(), choose(NAMES)
        texts = ", ".join(choose(TEXTS) for _ in range(choose((1, 2, 6))))
        return choose((
            f"{operand} {choose(OPERATORS)} {self.operand()}",
            f"{name} {choose(OPERATORS)} {choose(NUMBERS)}",
            f"{name} {choose(('=', '<>'))} {choose(TEXTS)}",
            f"{operand} {choose(('', 'NOT '))}BETWEEN {self.operand()} AND {self.operand()}",
            f"{name} {choose(('', 'not '))}IN ({texts})",
            f"{operand} IS {choose(('', 'NOT '))}NULL",
            choose((name, "TRUE", "FALSE", "NULL", f"NOT {name}")),
        ))  # fmt: skip

    def operand(self) -> str:
        choose = self.random.choice
        sign = choose(("", "", "", "", "-", "+", "- -", "NOT "))
        return sign + choose((choose(NAMES), choose(NAMES), choose(NUMBERS), choose(TEXTS), "TRUE", "FALSE", "NULL"))

    def properties(self) -> bytes:
        choose = self.random.choice
        return encode_properties(
            {name: choose(VALUES) for name in NAMES if name != "missing" and choose((True, True, False))}
        )


def our_verdict(expression: str, properties: bytes) -> str:
    try:
        found = SqlFilter.parse(expression)
    except SubscriptionParseError as exc:
        return "tail" if "after the end of the expression" in str(exc) else "refused"
    return str(found.matches(properties)).lower()


def test_our_verdicts_are_those_of_apache() -> None:
    """The one difference: what Apache ignores after the end of an expression is an error of ours."""
    generator = Generator(SEED)
    pairs = [(generator.expression(), generator.properties()) for _ in range(PAIRS)]
    lines = "".join(f"{b64encode(text.encode()).decode()} {b64encode(data).decode()}\n" for text, data in pairs)
    done = subprocess.run(
        ("java", "-cp", apache_classpath("4.9.7"), str(PROGRAM)),
        input=lines, capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    theirs = done.stdout.split()
    assert len(theirs) == PAIRS
    ours = [our_verdict(*pair) for pair in pairs]
    differences = [
        f"{text!r} {data!r}: ours {mine}, Apache {apache}"
        for (text, data), mine, apache in zip(pairs, ours, theirs, strict=True)
        if mine not in ("tail", apache)
    ]
    assert not differences, "\n".join(differences)
    seen = Counter(ours)
    assert min(seen[verdict] for verdict in ("true", "false", "refused", "tail")) > PAIRS // 50, seen
