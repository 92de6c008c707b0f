"""A cluster with something on each page of the dashboard, names and bodies of attackers among it, and the dashboard."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.integration.cli_tools import read_line, running
from triomq.client import ConsumerConfig, ConsumeStatus, Message
from triomq.client.sync import LitePullConsumer, Producer, PushConsumer
from triomq.testing import RunningBroker

#: Text that does something in a page that does not quote it.
HOSTILE: Final = (
    "<script>alert('script')</script>",
    "<img src=x onerror=alert('image')>",
    "\"><svg onload=alert('attribute')>",
    "' autofocus onfocus=alert('quote') x='",
    "</pre></bdi></textarea><iframe srcdoc=\"<script>parent.alert('frame')</script>\"></iframe>",
    "<link rel=stylesheet href=//elsewhere.example/a.css><img src=//elsewhere.example/b.png>",
    "{{ 7 * 7 }}{% raw %}<form action=//elsewhere.example><input name=typed_name>",
    "<div hx-get='account' hx-trigger='load' hx-on:load='alert(1)'>\u202e\u2066\x07\ufeff</div>",
)
ORDERS: Final = "tour-orders"
ATTACK: Final = "tour-attack"
_LONG: Final = "tour-" + "a-name-as-long-as-names-may-be-" * 3


def fill(broker: RunningBroker) -> None:
    """Make topics, messages of all sorts, groups with lag, and dead letters."""
    for topic in (ORDERS, ATTACK, _LONG):
        broker.create_topic(topic, queues=2)
    with Producer("tour", namesrv=broker.namesrv) as producer:
        for number in range(40):
            body = json.dumps({"order": number, "lines": ["a" * number]}).encode()
            producer.send(Message(ORDERS, body, tags="new", keys=f"order-{number}"))
        producer.send(Message(_LONG, bytes(range(256)) * 8, keys="k" * 200, properties={"p" * 100: "v" * 2000}))
        for text in HOSTILE:
            # The keys are separated by spaces.
            keys, tag = text.replace(" ", "/"), text.replace("|", "")
            properties = {"text": text, text.replace("\x07", ""): "name"}
            producer.send(Message(ATTACK, text.encode(), tags=tag, keys=keys, properties=properties))
        producer.send(Message(ATTACK, json.dumps({text: list(HOSTILE) for text in HOSTILE}).encode()))
    with LitePullConsumer("tour-lagging", namesrv=broker.namesrv, start="earliest") as consumer:
        consumer.subscribe(ORDERS)
        while not consumer.poll():
            pass
        consumer.commit()
    _give_up(broker)


def _give_up(broker: RunningBroker) -> None:
    """Have a group fail on hostile messages, so that they become dead letters."""

    with PushConsumer(
        "tour-failing",
        namesrv=broker.namesrv,
        on_message=lambda _: ConsumeStatus.RECONSUME_LATER,
        subscriptions={ATTACK: "*"},
        start="earliest",
        settings=ConsumerConfig(max_reconsume_times=0),
    ):
        broker.wait_until_consumed("tour-failing", timeout=30)


@contextmanager
def open_dashboard(namesrv: str, *options: str) -> Iterator[str]:
    """Run ``triomq dashboard``; yields the address of its ready line."""
    with running("dashboard", "--json", "--listen", "127.0.0.1:0", *options, namesrv=namesrv) as process:
        address: str = json.loads(read_line(process))["dashboard"]
        yield address
