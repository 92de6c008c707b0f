"""The overview: problems with their remedies, then rates, backlog and brokers."""

from typing import Any, Final

import trio

from triomq.client.admin.diagnosis import Finding
from triomq.client.admin.sampler import WAIT_S, Sampler
from triomq.client.admin.traffic import lag_by_group
from triomq.dashboard.formats import to
from triomq.dashboard.view import Page, View, both
from triomq.protocol.names import is_system_group

_MOST_LAGS: Final = 5


async def overview(view: View) -> dict[str, Any]:
    """Return findings, rates, backlog and brokers."""
    view.command("doctor")
    view.command("broker", "status")
    sampled = view.sampled
    with trio.move_on_after(WAIT_S):
        await sampled.sampled.wait()
    view.check_brokers()
    diagnosis, backlog = await both(sampled.examined, sampled.backlog)
    lags = {group: lag for group, lag in lag_by_group(backlog).items() if lag and not is_system_group(group)}
    return {
        "diagnosis": diagnosis,
        "problems": [(finding, link_of(finding)) for finding in (diagnosis.findings if diagnosis else ())],
        "sampled": sampled,
        "brokers": [sampled.brokers[key] for key in sorted(sampled.brokers)],
        "rates": plot_of(sampled),
        "backlog": sum(lags.values()),
        "lagging": sorted(lags.items(), key=lambda item: -item[1])[:_MOST_LAGS],
    }


def link_of(finding: Finding) -> str | None:
    """Return the page about what a finding names."""
    for page, name in (("group", finding.group), ("topic", finding.topic)):
        if name is not None:
            return to(page, name=name)
    return None


def plot_of(sampled: Sampler) -> list[list[float | None]]:
    """Return the rates of the last hour for the plot: seconds since 1970, messages in, messages out."""
    points = sampled.rates()
    return [
        [point.at for point in points],
        [None if point.put is None else round(point.put, 1) for point in points],
        [None if point.got is None else round(point.got, 1) for point in points],
    ]


PAGES: Final = (Page("", "Overview", overview, "overview.html", nav="Overview", polls_s=5),)
