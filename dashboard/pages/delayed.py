"""Messages that wait: delayed ones are taken back, undecided transactions decided."""

import time
from typing import Any, Final

from triomq.client import Producer, TransactionState
from triomq.client.environment import wall_clock_ms
from triomq.dashboard.formats import to
from triomq.dashboard.pages.messages import Row, older_of, row_of, time_before
from triomq.dashboard.pages.send import GROUP
from triomq.dashboard.view import BadRequestError, Change, Done, Page, View, is_about_account, slice_of
from triomq.protocol.errors import BrokerResponseError, NoPermissionError, NoRouteError, ProtocolError
from triomq.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.message_id import RecallHandle, delete_key
from triomq.protocol.record.properties import PropertyName

_MAX_DIGITS: Final = 18
_DECISIONS: Final = {
    "commit": (TransactionState.COMMIT, "committed"),
    "rollback": (TransactionState.ROLLBACK, "rolled back"),
    "check": (TransactionState.UNKNOWN, "checked: a producer of its group is asked now"),
}


async def delayed(view: View) -> dict[str, Any]:
    """Return the newest delayed messages, and the form that takes one back by its handle."""
    handle = view.query.get("handle", "")
    view.command("message", "recall", handle or "HANDLE")
    view.check_brokers()
    kinds = await view.sampled.topic_kinds()
    values: dict[str, Any] = {"rows": [], "older": {}, "refusal": ""}
    if TIMER_TOPIC in kinds:
        try:
            page = await view.admin.newest_messages(TIMER_TOPIC, before=time_before(view))
            values |= {"rows": rows_of(page.messages), "older": older_of(page)}
        except BrokerResponseError as exc:  # an account without the right can still take back what it sent
            if not is_about_account(str(exc)):
                raise
            values["refusal"] = str(exc)
    levels_topic = SCHEDULE_TOPIC if SCHEDULE_TOPIC in kinds else ""
    return values | {"handle": handle, "topic": view.query.get("name", ""), "levels_topic": levels_topic}


def rows_of(messages: list[MessageExt]) -> list[Row]:
    """Return the delayed messages among those of the timer topic, each once, with the handles of those that wait.

    The topic has requests to take messages back as well, and brokers store long-waiting messages there repeatedly.
    """
    now_ms, rows = wall_clock_ms(), dict[tuple[str, str, int], Row]()
    taken = {message.properties.get(PropertyName.TIMER_DELETE_UNIQUE_KEY) for message in messages}
    for message in messages:
        topic, message_id = message.properties.get(PropertyName.REAL_TOPIC, ""), message.unique_id or ""
        due = message.properties.get(PropertyName.TIMER_OUT_MILLIS, "")
        if PropertyName.TIMER_DELETE_UNIQUE_KEY in message.properties or not due.isdecimal() or len(due) > _MAX_DIGITS:
            continue
        row = row_of(message)._replace(original=topic, due_ms=int(due))
        if int(due) <= now_ms or delete_key(topic, message_id) in taken:
            row = row._replace(state="delivered" if int(due) <= now_ms else "taken back")
        elif message_id:
            row = row._replace(handle=RecallHandle(topic, message.broker_name, int(due), message_id).encode())
        rows.setdefault((topic, message_id or row.place["offset"], int(due)), row)
    return list(rows.values())


async def show_recall(view: View) -> dict[str, Any]:
    """Return the command line that takes a message back."""
    view.command("message", "recall", view.required("handle"))
    return {}


async def recall(view: View) -> Done:
    """Take a delayed message back."""
    handle, topic = view.required("handle").strip(), view.required("topic")
    try:
        wanted = RecallHandle.decode(handle)
    except ProtocolError as exc:
        raise BadRequestError(f"{exc}: it is the text that the sender of the message got") from None
    if wanted.topic != topic:
        raise BadRequestError(f"the handle is of a message for topic {wanted.topic}, not for {topic}")
    async with Producer(GROUP, instance=view.watched.instance) as producer:
        try:
            message_id = await producer.recall(handle)
        except NoPermissionError as exc:
            if "operation is forbidden" not in exc.remark:  # that is Apache's word for a setting
                raise
            raise BadRequestError("the broker takes no messages back: its setting recallMessageEnable is off") from None
    return Done(f"Message {message_id} is taken back.", to("delayed"))


async def transactions(view: View) -> dict[str, Any]:
    """Return the undecided transactions; ``None``: the brokers do not show them to tools."""
    view.command("transaction", "list")
    view.check_brokers()
    try:
        found = await view.admin.transactions()
    except NoRouteError:
        found = None
    part = slice_of([] if found is None else found, view.page_number)
    return {"part": part, "is_known": found is not None, "now_ms": time.time_ns() // 1_000_000}


async def decide(view: View) -> Done:
    """Decide a transaction in place of its producer."""
    transaction, decision = view.required("id"), view.required("decision")
    if decision not in _DECISIONS:
        raise BadRequestError(f"decision {decision!r}: it is one of {', '.join(_DECISIONS)}")
    state, done = _DECISIONS[decision]
    await view.admin.decide_transaction(transaction, state)
    return Done(f"Transaction {transaction} is {done}.", to("transactions"))


async def plan(view: View) -> dict[str, Any]:
    """Return the command line that decides a transaction."""
    view.command("transaction", view.required("decision"), view.required("id"))
    return {}


PAGES: Final = (
    Page("delayed", "Delayed messages", delayed, "delayed.html", nav="Delayed"),
    Page("transactions", "Undecided transactions", transactions, "transactions.html", nav="Transactions"),
)
CHANGES: Final = (
    Change("message-recall", "Take the message back", recall, asks_for="topic", plan=show_recall),
    Change("transaction-decide", "Decide the transaction", decide, asks_for="topic", plan=plan, template="decide.html"),
)
