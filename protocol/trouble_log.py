"""Log records about conditions that last: one when it begins, one when it is over."""

import logging
from collections.abc import Hashable


class TroubleLog:
    """Logs a failure that repeats once, until the operation works again."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._lasting: set[Hashable] = set()

    def begin(self, key: Hashable, message: str, *args: object) -> None:
        """Log a warning, unless the same trouble was logged and still lasts."""
        if key not in self._lasting:
            self._lasting.add(key)
            self._logger.warning(message, *args)

    def end(self, key: Hashable, message: str, *args: object) -> None:
        """Log that a trouble is over, if it was logged."""
        if key in self._lasting:
            self._lasting.remove(key)
            self._logger.warning(message, *args)
