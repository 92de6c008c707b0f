"""Log records about requests that fail and are retried."""

import logging

from triomq.client.connection.pool import is_reported


class RetryLog:
    """Logs a failure once for each key, until the operation works or fails in another way."""

    def __init__(self, logger: logging.Logger, message: str) -> None:
        """Take the message; its arguments are the key and the error."""
        self._logger = logger
        self._message = message
        self._errors: dict[str, str] = {}

    def failed(self, key: str, error: Exception) -> None:
        """Log a failure, as a warning unless the client instance logs it too."""
        if self._errors.get(key) != str(error):
            self._errors[key] = str(error)
            self._logger.log(logging.INFO if is_reported(error) else logging.WARNING, self._message, key, error)

    def worked(self, key: str) -> None:
        """Log the next failure again."""
        self._errors.pop(key, None)
