"""Responses to requests that fail: an error becomes a response code and a remark."""

import logging
from collections.abc import Callable
from typing import Final

from triomq.broker.network.rare_log import RareLog
from triomq.broker.network.responses import json_template
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import (
    RETRY_AFTER,
    IllegalNameError,
    LimitReachedError,
    MessageIllegalError,
    StoreClosedError,
    StoreError,
    SubscriptionParseError,
    TriomqError,
)
from triomq.protocol.wire.command import RemotingCommand

LOGGER: Final = logging.getLogger("triomq.broker.network.refusal")


#: After how long to try again what was refused because too much waits: that is gone by then, or much of it.
_RETRY_AFTER_MS: Final = 500


class RefusedError(TriomqError):
    """The request is answered with ``code`` and ``remark``; the connection stays open."""

    def __init__(self, remark: str, code: int = ResponseCode.SYSTEM_ERROR, retry_after_ms: int = 0) -> None:
        """Take the answer; ``retry_after_ms`` tells our clients when to try again, 0: the default if busy."""
        self.code = code
        self.remark = remark
        self.retry_after_ms = retry_after_ms or (_RETRY_AFTER_MS if code == ResponseCode.SYSTEM_BUSY else 0)
        super().__init__(f"{remark} ({code})")


_MAX_REMARK: Final = 1000
_SEND_CODES: Final = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})

#: Most specific class first.  Store errors mean "not now": a Java producer tries another broker on 14.
_CODES: Final[tuple[tuple[type[TriomqError], int], ...]] = (
    (MessageIllegalError, ResponseCode.MESSAGE_ILLEGAL),
    (IllegalNameError, ResponseCode.SYSTEM_ERROR),
    (SubscriptionParseError, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    (StoreClosedError, ResponseCode.SERVICE_NOT_AVAILABLE),
    (StoreError, ResponseCode.SERVICE_NOT_AVAILABLE),
)


class Refusals:
    """Makes and counts the responses to failed requests."""

    def __init__(self, statistics: BrokerStatistics, region: str, clock_ms: Callable[[], int]) -> None:
        self._statistics = statistics
        self._limits = RareLog(
            LOGGER, "requests beyond a limit since the start: %d; the last one peer=%s code=%d reason=%.300s", clock_ms
        )
        self._send_fields: Final = {"MSG_REGION": region, "TRACE_ON": "true"}

    def send_template(self, error: RefusedError) -> bytes:
        """Return the JSON header of a response to a send, to be filled with the opaque and the values of the remark."""
        fields = {name: text.replace("%", "%%") for name, text in self._send_fields.items()}
        return json_template({**fields, RETRY_AFTER: str(error.retry_after_ms)}, error.remark, error.code)

    def response(self, peer: str, command: RemotingCommand, code: int, remark: str) -> RemotingCommand:
        """Return the response to a request that failed."""
        self._statistics.failed_requests += 1
        fields = self._send_fields if command.code in _SEND_CODES else {}  # Java clients expect them on errors too
        LOGGER.debug("request refused code=%d peer=%s remark=%s", command.code, peer, remark)
        return command.reply(code, fields, remark=remark)

    def response_to(self, peer: str, command: RemotingCommand, error: Exception) -> RemotingCommand:
        """Return the response to a request that raised ``error``."""
        if isinstance(error, LimitReachedError):
            self._statistics.limited_requests += 1
            self._limits.note(self._statistics.limited_requests, peer, command.code, error, kind=error.limit)
        if isinstance(error, TriomqError):
            response = self.response(peer, command, response_code(error), remark_of(error))
            if isinstance(error, RefusedError | LimitReachedError) and error.retry_after_ms:
                response.ext_fields = {**response.ext_fields, RETRY_AFTER: str(error.retry_after_ms)}
            return response
        LOGGER.error("request failed code=%d peer=%s", command.code, peer, exc_info=error)
        return self.response(peer, command, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {remark_of(error)}")


def response_code(error: TriomqError) -> int:
    """Return the response code for an error of a processor."""
    if isinstance(error, RefusedError):
        return error.code
    if isinstance(error, LimitReachedError) and error.retry_after_ms:
        return ResponseCode.SYSTEM_BUSY
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ResponseCode.SYSTEM_ERROR


def remark_of(error: BaseException) -> str:
    """Return the remark for an error, short enough for any header."""
    text = error.remark if isinstance(error, RefusedError) else str(error) or type(error).__name__
    return text if len(text) <= _MAX_REMARK else text[:_MAX_REMARK] + "..."
