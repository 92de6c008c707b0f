import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def logger() -> Iterator[logging.Logger]:
    """The logger ``triomq``, which commands configure; restored after the test."""
    logger = logging.getLogger("triomq")
    before = (logger.level, logger.handlers[:], logger.propagate)
    yield logger
    for handler in logger.handlers:
        if handler not in before[1]:
            handler.close()
    logger.level, logger.handlers[:], logger.propagate = before
    logger.setLevel(before[0])
