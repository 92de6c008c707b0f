"""How a processor says no: an error that becomes the response."""

from typing import Final

from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import (
    IllegalNameError,
    MessageIllegalError,
    StoreClosedError,
    StoreError,
    SubscriptionParseError,
    TriomqError,
)


class RequestRefusedError(TriomqError):
    """The request is answered with ``code`` and ``remark``; nothing else is disturbed."""

    def __init__(self, code: int, remark: str) -> None:
        self.code = code
        self.remark = remark
        super().__init__(f"{remark} ({code})")


_MAX_REMARK: Final = 1000

#: Most specific class first.  Store errors are "not now": a Java producer tries another broker on 14.
_CODES: Final[tuple[tuple[type[TriomqError], int], ...]] = (
    (MessageIllegalError, ResponseCode.MESSAGE_ILLEGAL),
    (IllegalNameError, ResponseCode.SYSTEM_ERROR),
    (SubscriptionParseError, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    (StoreClosedError, ResponseCode.SERVICE_NOT_AVAILABLE),
    (StoreError, ResponseCode.SERVICE_NOT_AVAILABLE),
)


def response_code(error: TriomqError) -> int:
    """Return the response code for an error that a processor let pass."""
    if isinstance(error, RequestRefusedError):
        return error.code
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ResponseCode.SYSTEM_ERROR


def remark_of(error: BaseException) -> str:
    """Return the remark for an error, short enough for any header."""
    text = error.remark if isinstance(error, RequestRefusedError) else str(error) or type(error).__name__
    return text if len(text) <= _MAX_REMARK else text[:_MAX_REMARK] + "..."
