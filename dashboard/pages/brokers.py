"""Brokers and name servers: state, role, copies, disk; one broker with its settings.  Promotion is for the terminal."""

import re
from typing import Any, Final

from triomq.client import Replica
from triomq.client.admin.broker_answers import describe_missing, uptime_of
from triomq.client.admin.sampler import BrokerSample
from triomq.dashboard.view import NotFoundError, Page, View, slice_of
from triomq.protocol.errors import REMOTE_ERRORS

#: Settings whose values are not shown.
_SECRET: Final = re.compile(r"secret|password|credential|initAuthenticationUser|token", re.IGNORECASE)
_PER_PAGE: Final = 500


async def brokers(view: View) -> dict[str, Any]:
    """Return all brokers and name servers."""
    view.command("broker", "status")
    view.command("replica", "status")
    view.check_brokers()
    servers = await view.sampled.remembered("name servers", view.admin.name_servers)
    replicas = {(each.name, each.broker_id): each for each in await _replicas(view)}
    samples = view.sampled.brokers
    rows = [(samples.get(key), replicas.get(key)) for key in sorted({*samples, *replicas})]
    missing = {
        describe_missing(each) for server in servers if server.cluster for each in server.cluster.missing_brokers or ()
    }
    return {
        "servers": servers,
        "part": slice_of(rows, view.page_number),
        "missing": sorted(missing),
        "state": state,
        "version_of": version_of,
    }


async def _replicas(view: View) -> list[Replica]:
    return await view.sampled.remembered("replicas", view.admin.replicas)


def state(replica: Replica) -> str:
    """Return in words whether the copies of a broker are in touch."""
    if replica.error is not None:
        return replica.error
    if replica.is_master:
        return "" if replica.copies is None else f"slaves connected: {len(replica.copies)}"
    if replica.is_in_touch is None:
        return ""
    touch = "in touch" if replica.is_in_touch else "out of touch"
    return f"{touch} with {replica.master}" if replica.master else "knows no master"


async def broker(view: View) -> dict[str, Any]:
    """Return one broker with its settings.

    Raises:
        NotFoundError: no name server knows it.
    """
    name, broker_id, search = view.required("name"), view.query.get("id", "0"), view.query.get("q", "").strip()
    view.check_brokers()
    replica = next(
        (each for each in await _replicas(view) if (each.name, str(each.broker_id)) == (name, broker_id)), None
    )
    if replica is None:
        raise NotFoundError(f"no name server knows a broker {name!r} with the id {broker_id!r}")
    sample = view.sampled.brokers.get((replica.name, replica.broker_id))
    reached_at = sample.answer.reached_at if sample is not None else None
    view.command("broker", "status")
    if not replica.is_master and sample is not None and "triomqVersion" in sample.answer.runtime:
        view.command("replica", "promote", "--broker", replica.address)
    settings, refusal = dict[str, str](), None
    if reached_at is not None:
        try:
            settings = await view.sampled.remembered(
                f"settings {reached_at}", lambda: view.admin.broker_settings(reached_at)
            )
        except REMOTE_ERRORS as exc:
            refusal = str(exc)
    shown = [
        (key, "not shown" if value and _SECRET.search(key) else value)
        for key, value in sorted(settings.items())
        if search.lower() in key.lower()
    ]
    return {
        "title": f"Broker {name}",
        "replica": replica,
        "sample": sample,
        "state": state(replica),
        "version": version_of(sample),
        "uptime_s": None if sample is None else uptime_of(sample.answer.runtime),
        "search": search,
        "refusal": refusal,
        "part": slice_of(shown, view.page_number, _PER_PAGE),
        "can_promote": len(view.commands) > 1,
    }


def version_of(sample: BrokerSample | None) -> str:
    """Return product and version of a broker, "" if it does not report them."""
    runtime = {} if sample is None else sample.answer.runtime
    if version := runtime.get("triomqVersion"):
        return f"triomq {version}"
    version = runtime.get("brokerVersionDesc", "").removeprefix("V").replace("_", ".")
    return f"RocketMQ {version}" if version else ""


PAGES: Final = (
    Page("brokers", "Brokers and name servers", brokers, "brokers.html", nav="Brokers", polls_s=5),
    Page("broker", "Broker", broker, "broker.html", polls_s=5),
)
