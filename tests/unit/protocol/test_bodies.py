"""bodies: all bodies under one name."""

from triomq.protocol import bodies, client_bodies, route_bodies, stats_bodies
from triomq.protocol.json_body import JsonBody


def test_every_body_can_be_imported_from_one_module() -> None:
    for module in (client_bodies, route_bodies, stats_bodies):
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) == module.__name__ and not name.startswith("_"):
                assert getattr(bodies, name) is value
                assert name in bodies.__all__


def test_every_body_can_be_empty() -> None:
    for name in bodies.__all__:
        kind = getattr(bodies, name)
        if issubclass(kind, JsonBody):
            assert kind.decode(b"{}") == kind()
            assert kind.decode(kind().encode()) == kind()
