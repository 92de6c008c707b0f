"""Each code has a row, and docs/mqadmin.md lists the refused ones."""

import re
from pathlib import Path

from triomq.protocol.codes import RequestCode
from triomq.protocol.requests.catalogue import CATALOGUE

PAGE = Path(__file__).parents[4] / "docs" / "mqadmin.md"


def test_every_code_has_a_row() -> None:
    assert list(CATALOGUE) == [int(request.code) for request in CATALOGUE.values()]
    assert set(CATALOGUE) == set(RequestCode)


def test_page_lists_refused_codes_with_reasons() -> None:
    listed = re.findall(r"^\| (\d+) \| `(\w+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    refused = [(str(int(row.code)), row.code.name, row.refused) for row in CATALOGUE.values() if row.refused]
    assert listed == refused
