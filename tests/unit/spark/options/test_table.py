from pathlib import Path

import pytest

from tests.unit.spark.options.tables import tables
from triomq.spark.options.options import OPTIONS

CHAPTER = Path(__file__).parents[4] / "docs" / "spark.md"


@pytest.mark.parametrize("name", tables())
def test_the_chapter_has_the_table_of_the_code(name: str) -> None:
    """``python -m tests.unit.spark.options.tables`` prints the text between the two comments."""
    text = CHAPTER.read_text(encoding="utf-8")
    _, _, rest = text.partition(f"<!-- {name}: made by python -m tests.unit.spark.options.tables -->\n")
    assert rest.partition("<!-- end -->")[0] == tables()[name]


def test_each_option_is_a_line() -> None:
    lines = tables()["options"].splitlines()
    assert len(lines) == len(OPTIONS) + 2
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
