"""Every error triomq raises, in one tree.

::

    TriomqError
    |- ProtocolError                  bytes that break the protocol or the store format
    |  |- FrameTooLargeError          a length field above the limit, or negative
    |  `- SubscriptionParseError      a filter expression that cannot be read
    |- IllegalNameError               a topic or group name that RocketMQ rejects
    |- MessageIllegalError            a message above a size limit, rejected before it is sent or stored
    |  `- MessageTypeError            a field of a message has a value of the wrong type, also a TypeError
    |- RefusedError                   a request that a broker answers with an error code; nothing was done
    |- UnsupportedCompressionError    the package for this compression is not installed
    |- BrokerResponseError            the peer answered with an error code; subclasses for the codes we handle
    |- ClientError
    |  |- ConnectError                no connection; names the address, its source and the remedy
    |  |- ConnectionLostError         the connection ended before the answer came
    |  |- RequestTimeoutError         no answer within the deadline
    |  |- NameServerError             no name server could be reached
    |  |- NoRouteError                no broker is known for the topic
    |  |  `- NoBrokerError            no broker is known at all
    |  |- DataLossError               messages to be read no longer exist
    |  |- HandlerProcessError         the process that ran a consumer's handler died
    |  `- ClientClosedError           used after it was closed
    |- StoreError
    |  |- StoreLockedError            another process owns the store directory
    |  |- StoreLayoutError            a file of the store has a wrong size or name, or cannot be read
    |  |- StoreFullError              no space: nothing was stored
    |  |- IndexDamagedError           an index file contradicts itself
    |  `- StoreClosedError            used after it was closed
    `- ConfigError                    an invalid setting, found at startup
       `- WrongTypeError              a setting or argument has a value of the wrong type, also a TypeError
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar, Final, Self

from triomq.protocol.codes import ResponseCode, code_name

#: Field of a refusal by our brokers: after how many milliseconds to try again.
RETRY_AFTER: Final = "retryAfterMs"
#: A queue that is full now has room again by then.
_BUSY_RETRY_AFTER_MS: Final = 500
_MAX_DIGITS: Final = 9


class TriomqError(Exception):
    """Base of all errors of triomq; never raised itself.

    Attributes:
        code: the response code if a broker answers a request with this error.
        is_retriable: the same request to the same peer may succeed a moment later.
        is_retriable_elsewhere: another broker may accept the request.
        is_logged_once: the connection failed, which the client instance logs once for all requests on it.
    """

    code: int = ResponseCode.SYSTEM_ERROR
    is_retriable = False
    is_retriable_elsewhere = False
    is_logged_once = False


class ProtocolError(TriomqError):
    """Bytes from a peer or a file break the format; the text says where and how."""


class FrameTooLargeError(ProtocolError):
    """A frame's length field is negative or above the limit; nothing was allocated for it."""


class SubscriptionParseError(ProtocolError):
    """The expression of a subscription cannot be read, or its type is unknown."""

    code: int = ResponseCode.SUBSCRIPTION_PARSE_FAILED


class IllegalNameError(TriomqError):
    """A topic or group name breaks RocketMQ's rules; the text says which rule."""


class MessageIllegalError(TriomqError):
    """A message is above a size limit or has fields that exclude each other."""

    code: int = ResponseCode.MESSAGE_ILLEGAL


class MessageTypeError(MessageIllegalError, TypeError):
    """A field of a message has a value of the wrong type; the text names it and says what to pass."""


class RefusedError(TriomqError):
    """A broker answers the request with ``code`` and this text; nothing was done, and the connection stays open.

    Attributes:
        code: of the response.
        limit: the setting, quota or bound that the request exceeds; "": none.  Brokers count and log these.
        retry_after_ms: when our clients try again; 0: waiting does not help.
    """

    def __init__(
        self, text: str, code: int = ResponseCode.SYSTEM_ERROR, *, limit: str = "", retry_after_ms: int = 0
    ) -> None:
        self.code = code
        self.limit = limit
        self.retry_after_ms = retry_after_ms or (_BUSY_RETRY_AFTER_MS if code == ResponseCode.SYSTEM_BUSY else 0)
        super().__init__(text)


class UnsupportedCompressionError(TriomqError):
    """The package for a body's compression is not installed."""


class BrokerResponseError(TriomqError):
    """The peer answered a request with an error code.

    Attributes:
        code: the response code, possibly an unknown one.
        remark: the peer's text; "" if it sent none.
        address: the peer's ``host:port``.
        retry_after_s: when to try again, if a busy peer said it.
    """

    response_code: ClassVar[int] = -1
    by_code: ClassVar[dict[int, type["BrokerResponseError"]]] = {}

    def __init_subclass__(cls, response_code: int | None = None) -> None:
        """Register the class of a code; a second class for one code is a programming error."""
        if response_code is not None:
            cls.response_code = response_code
            if cls.by_code.setdefault(response_code, cls) is not cls:
                raise TypeError(f"{cls.__name__}: code {response_code} has an error class already")

    def __init__(self, code: int, remark: str, address: str = "", retry_after_s: float | None = None) -> None:
        self.code = code
        self.remark = remark
        self.address = address
        self.retry_after_s = retry_after_s
        where = f" from {address}" if address else ""
        when = "" if retry_after_s is None else f" (to be tried again after {retry_after_s:g} s)"
        super().__init__(f"{code_name(code)}({code}){where}: {remark or 'no reason given'}{when}")

    def __reduce__(self) -> tuple[type[Self], tuple[int, str, str, float | None]]:
        """Copy and pickle by the attributes: ``__init__`` needs more than the text."""
        return type(self), (self.code, self.remark, self.address, self.retry_after_s)

    @classmethod
    def from_response(
        cls, code: int, remark: str | None, address: str = "", ext_fields: Mapping[str, str] | None = None
    ) -> "BrokerResponseError":
        """Return an error of the class registered for ``code``, else of this base class."""
        after_ms = (ext_fields or {}).get(RETRY_AFTER, "")
        known = after_ms.isdecimal() and len(after_ms) <= _MAX_DIGITS
        retry_after_s = int(after_ms) / 1000 if known else None
        return cls.by_code.get(code, BrokerResponseError)(code, remark or "", address, retry_after_s)


class BrokerSystemError(BrokerResponseError, response_code=ResponseCode.SYSTEM_ERROR):
    """SYSTEM_ERROR(1): any failure inside the broker."""

    is_retriable_elsewhere = True


class SystemBusyError(BrokerResponseError, response_code=ResponseCode.SYSTEM_BUSY):
    """SYSTEM_BUSY(2): the broker sheds load; try again later."""

    is_retriable = True
    is_retriable_elsewhere = True


class RequestCodeNotSupportedError(BrokerResponseError, response_code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
    """REQUEST_CODE_NOT_SUPPORTED(3): the peer does not support the request."""


class MessageRefusedError(BrokerResponseError, response_code=ResponseCode.MESSAGE_ILLEGAL):
    """MESSAGE_ILLEGAL(13): the broker rejects the message's size or content."""


class ServiceNotAvailableError(BrokerResponseError, response_code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """SERVICE_NOT_AVAILABLE(14): the store accepts no messages now (disk full, closing, slave)."""

    is_retriable = True
    is_retriable_elsewhere = True


class NoPermissionError(BrokerResponseError, response_code=ResponseCode.NO_PERMISSION):
    """NO_PERMISSION(16): the broker, topic or group does not permit this."""

    is_retriable_elsewhere = True


class TopicNotExistError(BrokerResponseError, response_code=ResponseCode.TOPIC_NOT_EXIST):
    """TOPIC_NOT_EXIST(17): the broker lacks the topic, or the name server has no route to it."""

    is_retriable_elsewhere = True


class QueryNotFoundError(BrokerResponseError, response_code=ResponseCode.QUERY_NOT_FOUND):
    """QUERY_NOT_FOUND(22): nothing is stored under this key, group or offset."""


class SubscriptionNotExistError(BrokerResponseError, response_code=ResponseCode.SUBSCRIPTION_NOT_EXIST):
    """SUBSCRIPTION_NOT_EXIST(24): the group has no subscription for the topic yet."""


class SubscriptionNotLatestError(BrokerResponseError, response_code=ResponseCode.SUBSCRIPTION_NOT_LATEST):
    """SUBSCRIPTION_NOT_LATEST(25): the broker has not seen the newest subscription yet."""


class SubscriptionGroupNotExistError(BrokerResponseError, response_code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
    """SUBSCRIPTION_GROUP_NOT_EXIST(26): the group is unknown and is not created automatically."""


class NoBuyerIdError(BrokerResponseError, response_code=ResponseCode.NO_BUYER_ID):
    """NO_BUYER_ID(204): this broker does not serve the unit of the client."""

    is_retriable_elsewhere = True


class NotInCurrentUnitError(BrokerResponseError, response_code=ResponseCode.NOT_IN_CURRENT_UNIT):
    """NOT_IN_CURRENT_UNIT(205): this broker belongs to another unit."""

    is_retriable_elsewhere = True


class ConsumerNotOnlineError(BrokerResponseError, response_code=ResponseCode.CONSUMER_NOT_ONLINE):
    """CONSUMER_NOT_ONLINE(206): no member of the group is connected."""


class ClientError(TriomqError):
    """Base of errors on the client's side of a request."""

    is_retriable = True


class ConnectError(ClientError):
    """No connection to an address; the text names it, its source and the remedy."""

    is_retriable_elsewhere = True
    is_logged_once = True


class ConnectionLostError(ClientError):
    """The connection ended before the answer came: the peer may or may not have done the work."""

    is_retriable_elsewhere = True
    is_logged_once = True


class RequestTimeoutError(ClientError):
    """No answer came within the deadline: the peer may or may not have done the work.

    Logged once if the peer has never answered on the connection.
    """

    is_retriable_elsewhere = True


class NameServerError(ClientError):
    """None of the given name servers could be reached."""


class NoRouteError(ClientError):
    """The name server knows no broker for the topic."""


class NoBrokerError(NoRouteError):
    """The name server knows no broker at all: all are down, or it has just started."""


class DataLossError(ClientError):
    """Messages to be read no longer exist: they expired, or their topic was deleted or recreated."""

    is_retriable = False


class HandlerProcessError(ClientError):
    """A process that ran a consumer's handler died, or its handler raised what cannot be copied to this one."""


class ClientClosedError(ClientError):
    """The client was used after it was closed."""


#: What a request to a broker or name server raises: no answer, a refusal, or an answer that cannot be read.
REMOTE_ERRORS: Final = (ClientError, BrokerResponseError, ProtocolError)


class StoreError(TriomqError):
    """Base of errors of the store's files.  To clients it means "not now": a Java producer tries another broker."""

    code: int = ResponseCode.SERVICE_NOT_AVAILABLE


class StoreLockedError(StoreError):
    """Another process owns the store directory; the text names its process id if it is known."""


class StoreLayoutError(StoreError):
    """A file of the store has a wrong size or name, or cannot be opened; nothing was changed."""


class StoreFullError(StoreError):
    """The disk has no room: nothing was stored; the text names path, free bytes and the setting."""


class IndexDamagedError(StoreError):
    """An index file contradicts itself; it can be rebuilt from the commit log."""


class StoreClosedError(StoreError):
    """The store was used after it was closed."""


class ConfigError(TriomqError):
    """A setting has an invalid value."""


class WrongTypeError(ConfigError, TypeError):
    """A setting or argument has a value of the wrong type; the text names it and says what to pass."""


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of a group, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
