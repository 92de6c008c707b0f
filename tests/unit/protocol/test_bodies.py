"""Rules for every JSON body."""

import pytest

from triomq.protocol.bodies import client as client_bodies
from triomq.protocol.bodies import route as route_bodies
from triomq.protocol.bodies import statistics as stats_bodies
from triomq.protocol.bodies.json_body import JsonBody

BODIES = [
    kind
    for module in (client_bodies, route_bodies, stats_bodies)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, JsonBody) and kind.__module__ == module.__name__
]


@pytest.mark.parametrize("kind", BODIES)
def test_body_of_no_fields_round_trips(kind: type[JsonBody]) -> None:
    assert kind.decode(b"{}") == kind()
    assert kind.decode(kind().encode()) == kind()
