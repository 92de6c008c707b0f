import logging

import pytest


@pytest.fixture(autouse=True)
def restored_logger(logger: logging.Logger) -> None:
    """Commands configure it."""
