"""Responses to refused requests: the code and the text of an error become response code and remark."""

import logging
from typing import Final

from triomq.broker.statistics.counters import BrokerStatistics
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import RETRY_AFTER, RefusedError, TriomqError
from triomq.protocol.event_log import EventLog
from triomq.protocol.requests.catalogue import CATALOGUE
from triomq.protocol.wire.command import RemotingCommand, json_template

LOGGER: Final = logging.getLogger("triomq.broker.limits.refused")

_MAX_REMARK: Final = 1000


class Refusals:
    """Makes and counts the responses to failed requests."""

    def __init__(self, statistics: BrokerStatistics, region: str) -> None:
        self._statistics = statistics
        self._limits = EventLog(
            LOGGER,
            "requests beyond a limit since the start: %d; the last one peer=%s code=%d reason=%.300s",
            logging.WARNING,
        )
        self._send_fields: Final = {"MSG_REGION": region, "TRACE_ON": "true"}

    def send_template(self, error: RefusedError) -> bytes:
        """Return the JSON header of a response to a send, to be filled with the opaque and the values of the remark."""
        fields = {name: text.replace("%", "%%") for name, text in self._send_fields.items()}
        return json_template({**fields, RETRY_AFTER: str(error.retry_after_ms)}, str(error), error.code)

    def response(self, peer: str, command: RemotingCommand, code: int, remark: str) -> RemotingCommand:
        """Return the response to a request that failed."""
        self._statistics.failed_requests += 1
        request = CATALOGUE.get(command.code)
        fields = self._send_fields if request is not None and request.kind.has_region else {}
        LOGGER.debug("request refused code=%d peer=%s remark=%s", command.code, peer, remark)
        return command.reply(code, fields, remark=remark)

    def response_to(self, peer: str, command: RemotingCommand, error: Exception) -> RemotingCommand:
        """Return the response to a request that raised ``error``."""
        if not isinstance(error, TriomqError):
            LOGGER.error("request failed code=%d peer=%s", command.code, peer, exc_info=error)
            remark = f"{type(error).__name__}: {remark_of(error)}"
            return self.response(peer, command, ResponseCode.SYSTEM_ERROR, remark)
        response = self.response(peer, command, error.code, remark_of(error))
        if isinstance(error, RefusedError):
            if error.limit:
                self._statistics.limited_requests += 1
                self._limits.occurred(self._statistics.limited_requests, peer, command.code, error, key=error.limit)
            if error.retry_after_ms:
                response.ext_fields = {**response.ext_fields, RETRY_AFTER: str(error.retry_after_ms)}
        return response


def remark_of(error: BaseException) -> str:
    """Return the remark for an error, short enough for any header."""
    text = str(error) or type(error).__name__
    return text if len(text) <= _MAX_REMARK else text[:_MAX_REMARK] + "..."
