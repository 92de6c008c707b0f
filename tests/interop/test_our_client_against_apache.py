"""One suite of our client against our broker, by all its faces, and against Apache ones (C.2 scenario 69)."""

from collections.abc import Iterator

import pytest
import trio

from tests.faces import FACES, use_face
from tests.interop.client_suite import SCENARIOS
from tests.interop.suite_tools import Scenario

SCENARIO_LIMIT_S = 60
#: Broker and face; the faces differ inside the client only, so one of them is enough for Apache's brokers.
PLACES = (
    *(pytest.param(("triomq", face), id=f"triomq-{face}") for face in FACES),
    pytest.param(("apache-4.9.7", "trio"), id="apache-4.9.7", marks=pytest.mark.jvm),
    pytest.param(("apache-5.5.0", "trio"), id="apache-5.5.0", marks=pytest.mark.jvm),
)


@pytest.fixture(scope="module", params=PLACES)
def place(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The name server's address of each kind of broker, and the face to use there."""
    broker, face = request.param
    kind, _, version = broker.partition("-")
    if kind == "triomq":
        return request.getfixturevalue("triomq_broker").namesrv, face
    return request.getfixturevalue("apache_brokers").get(version).namesrv, face


@pytest.fixture
def namesrv(place: tuple[str, str]) -> Iterator[str]:
    address, face = place
    with use_face(face):
        yield address


@pytest.mark.parametrize("scenario", [pytest.param(scenario, id=scenario.__name__) for scenario in SCENARIOS])
async def test_our_client(namesrv: str, scenario: Scenario) -> None:
    with trio.fail_after(SCENARIO_LIMIT_S):
        await scenario(namesrv)
