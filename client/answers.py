"""Answers that mean something only when they say SUCCESS."""

from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import BrokerResponseError
from triomq.protocol.wire.command import RemotingCommand


def check(response: RemotingCommand, address: str) -> RemotingCommand:
    """Return a response with code SUCCESS.

    Raises:
        BrokerResponseError: it has another code; ``address`` tells whose answer it is.
    """
    if response.code != ResponseCode.SUCCESS:
        raise BrokerResponseError.from_response(response.code, response.remark, address)
    return response
