"""Each code has a row, and docs/mqadmin.md lists the refused ones."""

import re
from collections.abc import Callable
from pathlib import Path

from triomq.protocol.codes import RequestCode
from triomq.protocol.requests.catalogue import CATALOGUE, Kind
from triomq.protocol.wire.headers import Resource

PAGE = Path(__file__).parents[4] / "docs" / "mqadmin.md"


def test_every_code_has_a_row() -> None:
    assert list(CATALOGUE) == [int(request.code) for request in CATALOGUE.values()]
    assert set(CATALOGUE) == set(RequestCode)


def test_page_lists_refused_codes_with_reasons() -> None:
    listed = re.findall(r"^\| (\d+) \| `(\w+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    refused = [(str(int(row.code)), row.code.name, row.refused) for row in CATALOGUE.values() if row.refused]
    assert listed == refused


def test_kinds_follow_rocketmqs_queues_and_processors() -> None:
    """Source: BrokerController.java, registerProcessor; BrokerFastFailure.java; SendMessageProcessor.java."""
    assert codes(lambda kind: kind.is_shed) == {10, 36, 310, 320}
    assert codes(lambda kind: kind.has_region) == {10, 310, 320, 324, 325}
    assert codes(lambda kind: kind.stores) == {10, 36, 310, 320, 324, 325, 370}
    assert codes(lambda kind: kind.reads) == {11, 12, 33, 361}
    assert codes(lambda kind: kind.is_frequent) == {10, 11, 310, 320, 324, 325, 361}


def test_questions_change_nothing() -> None:
    words = ("GET", "QUERY", "SEARCH", "VIEW")
    asked = {code for code, row in CATALOGUE.items() if row.code.name.startswith(words) and not row.refused}
    asks_clients = {RequestCode.GET_CONSUMER_RUNNING_INFO}
    others = {11, 38, 322, 361}  # pulls, a member's own question, and a broker's
    assert codes(lambda kind: kind.is_question) - {52, 54, 3004, 3005, 3009, 3010} == asked - asks_clients - others


def test_bodies_with_groups_are_named() -> None:
    assert {code for code, row in CATALOGUE.items() if row.in_body is Resource.GROUP} == {34, 41, 42, 46, 200}
    limited = {code for code, row in CATALOGUE.items() if row.max_body_bytes}
    assert limited == {18, 25, 41, 42, 46, 200, 225, 318, 3001, 3002, 3006, 3007, 5002, 5003}


def codes(has: Callable[[Kind], bool]) -> set[int]:
    return {code for code, row in CATALOGUE.items() if has(row.kind)}
