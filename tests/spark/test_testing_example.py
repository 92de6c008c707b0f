"""The example of docs/testing.md with a Spark job."""

from pathlib import Path

import pytest

from tests.integration.test_testing_examples import LIMIT_S, run_example


@pytest.mark.timeout(LIMIT_S + 10)
def test_example_passes(tmp_path: Path) -> None:
    run_example("pyspark_job", tmp_path)
