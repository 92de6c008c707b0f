"""Settings of a producer, and the results of its sends.

Source: behaviour.md B.3 (kernel send, 8), wire.md 5.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, NamedTuple

from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import ConfigError, ProtocolError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.typed import check_fields

DEFAULT_MAX_MESSAGE_BYTES: Final = 4 * 1024**2
DEFAULT_COMPRESS_OVER_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """How a producer sends; comments give RocketMQ's names.

    Raises:
        ConfigError: a value is outside its range.
    """

    send_timeout_s: float = 3.0  # sendMsgTimeout: for each send with all its attempts
    retries: int = 2  # retryTimesWhenSendFailed: further attempts after a failed one; none with a queue or selector
    on_busy: Literal["wait", "raise"] = "wait"  # while all brokers are busy: try again within send_timeout_s, or raise
    retry_another_broker_when_not_stored_ok: bool = False  # ...NotStoreOK: also if stored, but not flushed or copied
    send_latency_fault_enable: bool = False  # sendLatencyFaultEnable: avoid slow brokers for 30 s to 10 minutes
    max_message_size_bytes: int = DEFAULT_MAX_MESSAGE_BYTES  # maxMessageSize: of an uncompressed body or a stored batch
    compress_over_bytes: int = DEFAULT_COMPRESS_OVER_BYTES  # compressMsgBodyOverHowmuch: larger bodies are compressed
    auto_batch: bool = False  # autoBatch of RocketMQ 5: what tasks send at the same time shares requests

    def __post_init__(self) -> None:
        check_fields(self)
        if self.on_busy not in ("wait", "raise"):
            raise ConfigError(f"producer: on_busy is {self.on_busy!r}, must be 'wait' or 'raise'")
        if not (self.send_timeout_s > 0 and self.max_message_size_bytes > 0):
            raise ConfigError("producer: send_timeout_s and max_message_size_bytes must be above 0")
        if self.retries < 0 or self.compress_over_bytes < 0:
            raise ConfigError("producer: retries and compress_over_bytes must not be negative")


class SendStatus(Enum):
    """How safely a message is stored; it is stored in each case."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"  # not flushed to disk in time
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"  # not copied to the slave in time
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"  # no slave that could take a copy


#: Response codes that say "stored".
STATUS_BY_CODE: Final[Mapping[int, SendStatus]] = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
}


class SendResult(NamedTuple):
    """Where a message, or a batch in one, was stored.

    Attributes:
        status: how safely.
        message_id: the unique id its producer gave it; of a batch all, joined by commas.
        offset_message_id: the id that contains its place in the broker's commit log; of a batch likewise.
        queue: the queue.
        queue_offset: its number in the queue; of a batch that of the first.
        recall_handle: the argument of ``Producer.recall`` for a delayed message; only newer brokers return one.
    """

    status: SendStatus
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    recall_handle: str | None = None


def read_send_result(status: SendStatus, message_id: str, queue: MessageQueue, fields: Mapping[str, str]) -> SendResult:
    """Make the result from a broker's answer; the broker may have chosen another queue of the topic.

    Raises:
        ProtocolError: the answer lacks a field.
    """
    try:
        queue_id = int(fields["queueId"])
        if queue_id != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
        offset, handle = int(fields["queueOffset"]), fields.get("recallHandle")
        return SendResult(status, message_id, fields["msgId"], queue, offset, handle)
    except (KeyError, ValueError) as exc:
        raise ProtocolError(f"answer to a send cannot be read: {exc!r} in {dict(fields)!r}") from exc
