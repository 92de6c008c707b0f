"""One suite of our client against our broker and against unmodified Apache brokers."""

import pytest
import trio

from tests.interop.client_suite import SCENARIOS
from tests.interop.suite_tools import Scenario

SCENARIO_LIMIT_S = 60


@pytest.fixture(
    scope="module",
    params=[
        "triomq",
        pytest.param("apache-4.9.7", marks=pytest.mark.jvm),
        pytest.param("apache-5.5.0", marks=pytest.mark.jvm),
    ],
)
def namesrv(request: pytest.FixtureRequest) -> str:
    """The name server's address of each kind of broker."""
    kind, _, version = str(request.param).partition("-")
    if kind == "triomq":
        return str(request.getfixturevalue("triomq_broker").namesrv)
    return str(request.getfixturevalue("apache_brokers").get(version).namesrv)


@pytest.mark.parametrize("scenario", [pytest.param(scenario, id=scenario.__name__) for scenario in SCENARIOS])
async def test_our_client(namesrv: str, scenario: Scenario) -> None:
    with trio.fail_after(SCENARIO_LIMIT_S):
        await scenario(namesrv)
