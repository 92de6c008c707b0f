"""Which port serves which request."""

import inspect

from triomq.broker.server import Broker
from triomq.protocol.codes import RequestCode

PULLS = {RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE}

#: Codes that only brokers, clients or later versions of this broker serve: answered REQUEST_CODE_NOT_SUPPORTED.
NOT_SERVED = {
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
    RequestCode.QUERY_ASSIGNMENT,
    *range(50, 55),  # only with accounts
}


def test_every_request_code_is_served_or_known_not_to_be(broker: Broker) -> None:
    assert set(broker.ports.broker.processors) | NOT_SERVED == set(RequestCode)
    assert not set(broker.ports.broker.processors) & NOT_SERVED


def test_the_vip_port_serves_all_but_pulls(broker: Broker) -> None:
    assert set(broker.ports.broker.processors) - set(broker.ports.vip.processors) == PULLS


def test_broker_port_serves_all_name_server_requests(broker: Broker) -> None:
    assert set(broker.ports.namesrv.processors) <= set(broker.ports.broker.processors)


def test_no_processor_can_wait(broker: Broker) -> None:
    assert not [
        code for code, processor in broker.ports.broker.processors.items() if inspect.iscoroutinefunction(processor)
    ]
