from unittest.mock import Mock

import pytest

from triomq.demo.flights import Flight
from triomq.demo.groups import Group

FLIGHTS = [Flight("UA", "N1", b"a"), Flight("UA", "N2", b"b"), Flight("DL", "N3", b"c")]


@pytest.mark.parametrize(
    ("received", "differences"),
    [
        (reversed(FLIGHTS), []),
        (
            [FLIGHTS[0], FLIGHTS[2], FLIGHTS[2], Flight("AA", "N4", b"d")],
            ["AA: 1 instead of 0", "DL: 2 instead of 1", "UA: 1 instead of 2"],
        ),
        ([FLIGHTS[0], FLIGHTS[0], FLIGHTS[2]], ["the counts are right, but the contents are not"]),
    ],
)
async def test_differences_from_the_data_are_listed(received: list[Flight], differences: list[str]) -> None:
    group = Group("g")
    for number, flight in enumerate(received):
        await group.handle(number % 2, [Mock(tags=flight.carrier, body=flight.line)])
    assert group.differences(FLIGHTS) == [f"group g: {one}" for one in differences]


def test_group_wants_flights_of_its_carriers() -> None:
    assert Group("g").wanted(FLIGHTS) == FLIGHTS
    assert Group("g", ("DL",)).wanted(FLIGHTS) == FLIGHTS[2:]
