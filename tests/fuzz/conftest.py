from pathlib import Path

import pytest

from tests.unit.storage.making import StoreMaker


@pytest.fixture
def maker(tmp_path: Path) -> StoreMaker:
    return StoreMaker(tmp_path)
