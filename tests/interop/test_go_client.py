"""The unmodified Apache Go client against our broker (C.2 scenario 69)."""

from typing import Final

import pytest

from tests.interop.kit_driver import Verdicts, check_verdict, run_scenarios, wanted_scenarios
from tests.processes import Broker

pytestmark = [pytest.mark.go, pytest.mark.slow]

SCENARIOS: Final = (
    "send_sync", "send_async", "send_oneway", "send_batch", "send_large_body_compressed", "send_unicode_properties",
    "push_concurrent_tags", "push_broadcast", "push_retry_then_succeed", "push_dead_letter", "delayed_message",
    "push_orderly", "rebalance_join_leave", "offsets_persist_across_restart", "request_reply", "transaction_commit",
    "transaction_rollback", "transaction_check_back", "pull_from", "pull_poll", "admin_create_delete_topic",
)  # fmt: skip


@pytest.fixture(scope="module")
def verdicts(
    request: pytest.FixtureRequest, triomq_broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Verdicts:
    """One run of the kit."""
    logs = tmp_path_factory.mktemp("logs")
    return run_scenarios(("run-go.sh",), triomq_broker.namesrv, wanted_scenarios(request), logs)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_go_client_passes(verdicts: Verdicts, scenario: str) -> None:
    check_verdict(verdicts, scenario)
