"""Pictures of the dashboard: ``python -m tests.dashboard.pictures`` makes those in ``docs/pictures`` again.

With a folder as argument it makes one of each page there: light, dark, and as wide as a phone, so that people can look
at all of them after a change.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tests.dashboard.browser import NARROW, WIDE, Browser, open_browser
from tests.dashboard.cluster import open_dashboard
from tests.integration.cli_tools import running
from triomq.client import ClientConfig, ConsumerConfig, ConsumeStatus, Message, MessageExt, TransactionState
from triomq.client.sync import LitePullConsumer, Producer, PushConsumer, TransactionProducer
from triomq.testing import RunningBroker, open_broker

_DOCS: Final = Path(__file__).parents[2] / "docs" / "pictures"
#: How long the traffic runs before the pictures, so that the plot has a shape.
_TRAFFIC_S: Final = 180
_PICTURE: Final = (1280, 860)
_TOUR: Final = {
    "overview": "",
    "topics": "topics",
    "topic": "topic?name=orders",
    "messages": "messages?name=orders",
    "tail": "tail?name=orders",
    "send": "send?name=orders",
    "groups": "groups",
    "group": "group?name=invoices",
    "group-members": "group?name=shipping",
    "dead-letters": "dead-letters",
    "dead-letters-of": "dead-letters?name=mail",
    "delayed": "delayed",
    "transactions": "transactions",
    "brokers": "brokers",
    "broker": "broker?name=broker-a",
    "accounts": "accounts",
    "account": "account",
    "missing": "topic?name=nothing",
}


@contextmanager
def shop() -> Iterator[RunningBroker]:
    """Run a broker with the traffic of a small shop: one group too slow, one without members, one with dead letters."""
    with open_broker() as broker, ExitStack() as stack:
        for topic in ("orders", "payments", "mails", "returns"):
            broker.create_topic(topic, queues=4)
        with Producer("shop", namesrv=broker.namesrv) as producer:
            for number in range(60):
                body = f'{{"order": {1000 + number}, "total": {number * 7 % 90 + 9}.50, "currency": "EUR"}}'
                tags = ("paid", "sent", "refunded")[number % 3]
                for topic in ("orders", "returns"):
                    producer.send(Message(topic, body.encode(), tags=tags, keys=f"order-{1000 + number}"))
            for number in range(5):
                producer.send(Message("mails", f"Dear customer {number}".encode(), keys=f"mail-{number}"))
                producer.send(Message("mails", f"Reminder {number}".encode(), tags="reminder", delay_s=3600 + number))
        _fall_behind(broker)
        _give_up(broker)
        with TransactionProducer("checkout", namesrv=broker.namesrv, check=_unknown) as undecided:
            for number in range(2):
                undecided.send(Message("payments", b"42.00 EUR", keys=f"order-{number}"), _unknown)
        stack.enter_context(_member(broker, "shipping", "shipping-1"))
        stack.enter_context(_member(broker, "shipping", "shipping-1"))  # equal client ids are a problem to show
        stack.enter_context(_member(broker, "billing", "billing-1", wait_s=0.02))
        for topic, rate in (("orders", "42/s"), ("payments", "17/s")):
            stack.enter_context(
                running("produce", topic, "--count", "1000000", "--rate", rate, "--tag", "paid", namesrv=broker.namesrv)
            )
        yield broker


def _unknown(_: object) -> TransactionState:
    return TransactionState.UNKNOWN


def _fall_behind(broker: RunningBroker) -> None:
    with LitePullConsumer("invoices", namesrv=broker.namesrv, start="earliest") as consumer:
        consumer.subscribe("returns")
        while not consumer.poll():
            pass
        consumer.commit()


def _give_up(broker: RunningBroker) -> None:
    with PushConsumer(
        "mail",
        namesrv=broker.namesrv,
        on_message=lambda _: ConsumeStatus.RECONSUME_LATER,
        subscriptions={"mails": "*"},
        start="earliest",
        settings=ConsumerConfig(max_reconsume_times=0),
    ):
        broker.wait_until_consumed("mail", timeout=30)


def _member(broker: RunningBroker, group: str, name: str, wait_s: float = 0.0) -> PushConsumer:
    def handle(_message: MessageExt) -> None:
        time.sleep(wait_s)

    config = ClientConfig(instance_name=name)
    subscriptions = {"orders": "*", "payments": "*"}
    return PushConsumer(group, namesrv=broker.namesrv, config=config, subscriptions=subscriptions, on_message=handle)


def take(browser: Browser, address: str, path: Path, *, is_whole: bool = True) -> None:
    """Save a picture of a page after its second look at the cluster."""
    browser.show(address)
    time.sleep(2.5)
    browser.picture(path, is_whole=is_whole)


def document(broker: RunningBroker, browser: Browser, base: str) -> None:
    """Make the pictures of the documentation."""
    time.sleep(_TRAFFIC_S / 3)
    with running("produce", "orders", "--count", "1000000", "--rate", "80/s", namesrv=broker.namesrv):
        time.sleep(_TRAFFIC_S / 3)
    time.sleep(_TRAFFIC_S / 3)
    browser.resize(_PICTURE)
    for name, scheme, page in (("overview", "light", ""), ("group", "dark", _TOUR["group-members"])):
        browser.prefer(scheme)
        take(browser, base + page, _DOCS / f"dashboard-{name}.png", is_whole=False)


def tour(browser: Browser, base: str, folder: Path) -> None:
    """Make pictures of all pages."""
    folder.mkdir(parents=True, exist_ok=True)
    browser.show(f"{base}{_TOUR['dead-letters-of']}")
    (message, *_) = [link for link in browser.links() if "message?" in link]
    for name, page in {**_TOUR, "message": message.removeprefix(base)}.items():
        for scheme, size in (("light", WIDE), ("dark", WIDE), ("light", NARROW)):
            browser.prefer(scheme)
            browser.resize(size)
            take(browser, base + page, folder / f"{name}-{scheme}-{size[0]}.png")


def main(arguments: list[str]) -> None:
    """Make the pictures."""
    with shop() as broker, open_dashboard(broker.namesrv) as address, open_browser() as browser:
        browser.hide_scrollbars()
        browser.enter(address)
        base = browser.driver.current_url
        if arguments:
            tour(browser, base, Path(arguments[0]))
        else:
            document(broker, browser, base)


if __name__ == "__main__":
    main(sys.argv[1:])
