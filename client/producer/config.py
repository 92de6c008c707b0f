"""Settings of a producer."""

from dataclasses import dataclass
from typing import Final, Literal

from triomq.protocol.errors import ConfigError
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
