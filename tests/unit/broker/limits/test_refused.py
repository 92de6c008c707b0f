"""Errors become RocketMQ's response codes."""

import pytest

from triomq.broker.limits.refused import Refusals, remark_of
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import (
    ConfigError,
    IllegalNameError,
    MessageIllegalError,
    ProtocolError,
    RefusedError,
    StoreClosedError,
    StoreError,
    StoreFullError,
    SubscriptionParseError,
    TriomqError,
)
from triomq.protocol.wire.command import RemotingCommand


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RefusedError("no", ResponseCode.NO_PERMISSION), ResponseCode.NO_PERMISSION),
        (MessageIllegalError("large"), ResponseCode.MESSAGE_ILLEGAL),
        (IllegalNameError("blank"), ResponseCode.SYSTEM_ERROR),
        (SubscriptionParseError("||"), ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        (ProtocolError("torn"), ResponseCode.SYSTEM_ERROR),
        (StoreFullError("full"), ResponseCode.SERVICE_NOT_AVAILABLE),
        (StoreClosedError("closed"), ResponseCode.SERVICE_NOT_AVAILABLE),
        (StoreError("io"), ResponseCode.SERVICE_NOT_AVAILABLE),
        (ConfigError("other"), ResponseCode.SYSTEM_ERROR),
    ],
)
def test_error_maps_to_the_response_code(error: TriomqError, code: int) -> None:
    refusals = Refusals(BrokerStatistics(0), "region")
    assert refusals.response_to("peer", RemotingCommand(RequestCode.HEART_BEAT), error).code == code


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.HEART_BEAT])
def test_busy_answer_contains_the_time_to_wait(code: int) -> None:
    refusals = Refusals(BrokerStatistics(0), "region")
    for error, after in [
        (RefusedError("busy", ResponseCode.SYSTEM_BUSY), "500"),
        (RefusedError("busy", ResponseCode.SYSTEM_BUSY, retry_after_ms=20), "20"),
        (RefusedError("quota", ResponseCode.SERVICE_NOT_AVAILABLE, retry_after_ms=7), "7"),
        (RefusedError("never"), None),
    ]:
        response = refusals.response_to("peer", RemotingCommand(code), error)
        assert response.ext_fields.get("retryAfterMs") == after


def test_remark_is_never_empty_nor_long() -> None:
    assert remark_of(ValueError()) == "ValueError"
    assert remark_of(ValueError("x" * 5000)) == "x" * 1000 + "..."
