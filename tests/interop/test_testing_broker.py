"""An unmodified Java client uses the broker of a test."""

from pathlib import Path

import pytest

from tests.interop.kit_driver import check_verdict, run_scenarios
from triomq.testing import RunningBroker


@pytest.mark.jvm
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_java_client_sends_and_consumes(rocketmq_broker: RunningBroker, tmp_path: Path) -> None:
    scenario = "push_concurrent_star"
    check_verdict(run_scenarios(("run.sh", "--client", "5"), rocketmq_broker.namesrv, [scenario], tmp_path), scenario)
