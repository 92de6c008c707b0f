"""Messages that wait: delayed ones are taken back, undecided transactions decided."""

import time
from typing import Any, Final

from triomq.client import Producer, TransactionState
from triomq.dashboard.formats import to
from triomq.dashboard.pages.send import GROUP
from triomq.dashboard.view import BadRequestError, Change, Done, Page, View, slice_of
from triomq.protocol.errors import NoPermissionError, NoRouteError, ProtocolError
from triomq.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from triomq.protocol.record.message_id import RecallHandle

_DECISIONS: Final = {
    "commit": (TransactionState.COMMIT, "committed"),
    "rollback": (TransactionState.ROLLBACK, "rolled back"),
    "check": (TransactionState.UNKNOWN, "checked: a producer of its group is asked now"),
}


async def delayed(view: View) -> dict[str, Any]:
    """Return the form that takes a message back, and the topics in which messages wait."""
    handle = view.query.get("handle", "")
    view.command("message", "recall", handle or "HANDLE")
    kinds = await view.sampled.topic_kinds()
    return {
        "handle": handle,
        "topic": view.query.get("name", ""),
        "topics": [name for name in (SCHEDULE_TOPIC, TIMER_TOPIC) if name in kinds],
    }


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
    Change("message-recall", "Take the message back", recall, asks_for="topic"),
    Change("transaction-decide", "Decide the transaction", decide, asks_for="topic", plan=plan, template="decide.html"),
)
