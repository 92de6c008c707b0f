"""Clients on trio: producer, consumers, administration.

For callers that block: ``triomq.client.sync``; for asyncio: ``triomq.client.asyncio``.
"""

from triomq.client.admin.admin import Admin, OffsetChange, OffsetReset
from triomq.client.admin.dead_letters import DeadLetter, DeadLetterCount, Redrive
from triomq.client.admin.diagnosis import Diagnosis, Finding, FindingKind
from triomq.client.admin.group_state import GroupLag, GroupState, QueueState
from triomq.client.admin.replay import ReplayPlan, ReplayQueue
from triomq.client.admin.topic_config import TopicChange, TopicSettings
from triomq.client.cluster.instance import ClientInstance
from triomq.client.config import ClientConfig, OpenTelemetry, TlsConfig, load_credentials
from triomq.client.consumer.assignment.strategies import (
    AllocateStrategy,
    allocate_averagely,
    allocate_by_circle,
    allocate_by_config,
    allocate_by_machine_room,
    allocate_consistent_hash,
    allocate_nearby,
)
from triomq.client.consumer.config import (
    ConsumeContext,
    ConsumerConfig,
    ConsumeStatus,
    LitePullConfig,
    OrderlyContext,
    StartPosition,
)
from triomq.client.consumer.hooks import ConsumeHook, ConsumeReturnType, FilterHook, HookContext
from triomq.client.consumer.lite_pull import LitePullConsumer
from triomq.client.consumer.pull import PullConsumer
from triomq.client.consumer.push import PushConsumer
from triomq.client.producer.config import ProducerConfig
from triomq.client.producer.producer import Producer, QueueSelector, select_by_hash, select_by_random
from triomq.client.producer.reply import Responder
from triomq.client.producer.send_result import SendResult, SendStatus
from triomq.client.producer.transaction import Transaction, TransactionProducer, TransactionState
from triomq.protocol.bodies.client import MessageModel
from triomq.protocol.errors import (
    BrokerResponseError,
    BrokerSystemError,
    ClientClosedError,
    ClientError,
    ConfigError,
    ConnectError,
    ConnectionLostError,
    ConsumerNotOnlineError,
    FrameTooLargeError,
    IllegalNameError,
    MessageIllegalError,
    MessageRefusedError,
    MessageTypeError,
    NameServerError,
    NoPermissionError,
    NoRouteError,
    ProtocolError,
    QueryNotFoundError,
    RequestCodeNotSupportedError,
    RequestTimeoutError,
    ServiceNotAvailableError,
    SubscriptionGroupNotExistError,
    SubscriptionNotExistError,
    SubscriptionNotLatestError,
    SubscriptionParseError,
    SystemBusyError,
    TopicNotExistError,
    TriomqError,
    UnsupportedCompressionError,
    WrongTypeError,
)
from triomq.protocol.filters.filter_types import Sql, Tags
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import Message, MessageExt
from triomq.protocol.wire.signing import Credentials

__all__ = [
    "Admin",
    "AllocateStrategy",
    "BrokerResponseError",
    "BrokerSystemError",
    "ClientClosedError",
    "ClientConfig",
    "ClientError",
    "ClientInstance",
    "ConfigError",
    "ConnectError",
    "ConnectionLostError",
    "ConsumeContext",
    "ConsumeHook",
    "ConsumeReturnType",
    "ConsumeStatus",
    "ConsumerConfig",
    "ConsumerNotOnlineError",
    "Credentials",
    "DeadLetter",
    "DeadLetterCount",
    "Diagnosis",
    "FilterHook",
    "Finding",
    "FindingKind",
    "FrameTooLargeError",
    "GroupLag",
    "GroupState",
    "HookContext",
    "IllegalNameError",
    "LitePullConfig",
    "LitePullConsumer",
    "Message",
    "MessageExt",
    "MessageIllegalError",
    "MessageModel",
    "MessageQueue",
    "MessageRefusedError",
    "MessageTypeError",
    "NameServerError",
    "NoPermissionError",
    "NoRouteError",
    "OffsetChange",
    "OffsetReset",
    "OpenTelemetry",
    "OrderlyContext",
    "Producer",
    "ProducerConfig",
    "ProtocolError",
    "PullConsumer",
    "PushConsumer",
    "QueryNotFoundError",
    "QueueSelector",
    "QueueState",
    "Redrive",
    "ReplayPlan",
    "ReplayQueue",
    "RequestCodeNotSupportedError",
    "RequestTimeoutError",
    "Responder",
    "SendResult",
    "SendStatus",
    "ServiceNotAvailableError",
    "Sql",
    "StartPosition",
    "SubscriptionGroupNotExistError",
    "SubscriptionNotExistError",
    "SubscriptionNotLatestError",
    "SubscriptionParseError",
    "SystemBusyError",
    "Tags",
    "TlsConfig",
    "TopicChange",
    "TopicNotExistError",
    "TopicSettings",
    "Transaction",
    "TransactionProducer",
    "TransactionState",
    "TriomqError",
    "UnsupportedCompressionError",
    "WrongTypeError",
    "allocate_averagely",
    "allocate_by_circle",
    "allocate_by_config",
    "allocate_by_machine_room",
    "allocate_consistent_hash",
    "allocate_nearby",
    "load_credentials",
    "select_by_hash",
    "select_by_random",
]
