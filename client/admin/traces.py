"""The history of a message, from the records of clients that trace."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from triomq.client.admin.messages import MessageAdmin
from triomq.protocol import trace as records
from triomq.protocol.names import TRACE_TOPIC
from triomq.protocol.record.message import MessageExt

#: By the code of a ``SubAfter`` record.
_RESULTS: Final = ("ok", "ok, late", "raised", "no status", "failed")
#: A row of which nothing is known.
_NO_STEP: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("time_ms", "what", "message_id", "topic", "group", "client", "broker", "try")),
    "took_milliseconds": None,
    "result": "",
}
_DECISIONS: Final = {"COMMIT_MESSAGE": "committed", "ROLLBACK_MESSAGE": "rolled back"}


class TraceAdmin(MessageAdmin):
    """Reads traces."""

    async def trace(self, wanted: str, trace_topic: str = TRACE_TOPIC) -> list[dict[str, Any]]:
        """Return the steps of a message, or of all messages with a key, in the order of their times.

        Each has ``time_ms``, ``what``, ``message_id``, ``topic``, ``group``, ``client``, ``broker``, ``try``,
        ``took_milliseconds`` and ``result``; a value that is not known is ``None``.

        Args:
            wanted: id that the producer gave to the message, or a key.
            trace_topic: where clients store their records.

        Raises:
            NoRouteError: no broker has the trace topic.
        """
        return steps(records_about(await self.find_messages(trace_topic, wanted), wanted))


class Traced(NamedTuple):
    """A record, and the address of the client that wrote it."""

    record: records.TraceRecord
    client: str


def records_about(messages: Iterable[MessageExt], wanted: str) -> list[Traced]:
    """Return the records about a message id or a key, each once, in the order of trace messages."""
    found: dict[records.TraceRecord, Traced] = {}
    for message in messages:
        for record in records.decode_trace(message.body):
            if record.message_id == wanted or wanted in getattr(record, "keys", "").split():
                host = getattr(record, "client_host", "") or message.born_host.rpartition(":")[0]
                found.setdefault(record, Traced(record, host))
    return list(found.values())


def steps(traced: Iterable[Traced]) -> list[dict[str, Any]]:
    """Return one row for each step: each call of a handler, begun and ended, is one."""
    traced = sorted(traced, key=lambda one: isinstance(one.record, records.ConsumeEnded))  # after the begin of its call
    topics = {record.message_id: record.topic for record, _ in traced if isinstance(record, records.Published)}
    calls: dict[tuple[str, str], dict[str, Any]] = {}
    rows = []
    for record, client in traced:
        row = {**_NO_STEP, "time_ms": record.time_ms or None, "message_id": record.message_id, "client": client}
        row |= {"group": record.group or None, "topic": topics.get(record.message_id)} | _step(record)
        if isinstance(record, records.ConsumeBegun):
            calls[record.request_id, record.message_id] = row
        if isinstance(record, records.ConsumeEnded) and (record.request_id, record.message_id) in calls:
            calls.pop((record.request_id, record.message_id)).update(_step(record))
        else:
            rows.append(row)
    return sorted(rows, key=lambda row: row["time_ms"] or 0)


def _step(record: records.TraceRecord) -> dict[str, Any]:
    """Return the members of a row that only this kind of record has."""
    if isinstance(record, records.ConsumeBegun):
        return {"what": "consumed", "try": record.retry_times + 1, "result": "not ended"}
    if isinstance(record, records.ConsumeEnded):
        is_known = 0 <= record.code < len(_RESULTS) and (record.is_success or record.code)
        result = _RESULTS[record.code] if is_known else "failed"
        return {"what": "consumed", "took_milliseconds": record.took_ms, "result": result}
    if isinstance(record, records.TransactionEnded):
        what = "decided after a check" if record.is_from_check else "decided"
        result = _DECISIONS.get(record.state, "unknown")
        return {"what": what, "topic": record.topic, "broker": record.store_host, "result": result}
    result = "ok" if record.is_success else "failed"
    if isinstance(record, records.Published):
        sent = {"what": "sent", "broker": record.store_host, "took_milliseconds": record.took_ms}
        return {**sent, "topic": record.topic, "result": result}
    return {"what": "recalled", "topic": record.topic, "result": result}
