"""Which port serves which request."""

import inspect

from triomq.broker.server import Broker
from triomq.protocol.codes import RequestCode
from triomq.protocol.requests.catalogue import CATALOGUE

PULLS = {RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE}


def test_all_but_refused_codes_are_served(broker: Broker) -> None:
    assert set(broker.ports.broker.processors) == {code for code, row in CATALOGUE.items() if not row.refused}


def test_the_vip_port_serves_all_but_pulls(broker: Broker) -> None:
    assert set(broker.ports.broker.processors) - set(broker.ports.vip.processors) == PULLS


def test_broker_port_serves_all_name_server_requests(broker: Broker) -> None:
    assert set(broker.ports.namesrv.processors) <= set(broker.ports.broker.processors)


def test_no_processor_can_wait(broker: Broker) -> None:
    assert not [
        code for code, processor in broker.ports.broker.processors.items() if inspect.iscoroutinefunction(processor)
    ]
