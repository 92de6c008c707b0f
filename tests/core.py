"""The core of the suites with Apache's programs, Spark and a browser: the part that the gate runs.

`make test-all` runs the remainder too, which takes most of an hour: run it before you call a change of the protocol,
the store or the Spark source finished.  A test belongs here if it is the only one of its kind, or the cheapest of
several.  A key is the beginning of a test's node id.  The Rust client's build alone takes longer than the gate.
"""

from collections.abc import Mapping
from typing import Final

_INTEROP: Final[Mapping[str, str]] = {
    "test_java_clients.py::test_java_client_passes[JSON-": "the whole kit with the Java clients of 4.9 and 5.x",
    "test_our_client_against_apache.py::": "our client's whole suite at Apache's brokers of 4.9 and 5.x",
    "test_clusters.py::test_all_name_servers_answer_with_the_same_route[mixed-at-apache": "mixed clusters",
    "test_clusters.py::test_java_clients_pass[mixed-at-apache-4.9": "mixed clusters, for Java clients",
    "test_clusters.py::test_the_go_client_passes[mixed-at-apache": "mixed clusters, and the Go client",
    "test_go_client.py::test_go_client_passes[push_concurrent_tags": "the Go client",
    "test_go_client.py::test_go_client_passes[transaction_check_back": "the Go client's transactions",
    "test_other_clients.py::test_consumers_get_what_was_sent[node": "the Node client",
    "test_store_exchange.py::test_store_survives_exchange_with_apache_both_ways[store-crash": "store files, both ways",
    "test_transactions_exchange.py::test_apache_continues_our_transactions[True": "undecided transactions in our store",
    "test_transactions_exchange.py::test_we_continue_transactions_of_apache[True": "the same in Apache's store",
    "test_acl_verdicts.py::": "accounts: Apache's broker is the judge of each request",
    "test_tls.py::test_our_client_uses_tls_to_apache[4.9": "our client's TLS",
}

_SPARK: Final[Mapping[str, str]] = {
    "test_smoke.py::": "a write, a batch and a stream",
    "test_batch_read.py::test_all_columns_equal_the_sent_messages": "batch reads",
    "test_stream_read.py::test_available_now_ends_at_offsets_of_its_start": "streams",
    "test_stream_read.py::test_only_first_version_offsets_are_accepted": "a restart from a checkpoint",
    "test_write.py::test_all_columns_of_all_rows_become_messages": "writes",
    "test_loss_of_data.py::test_retention_beyond_checkpoint_is_reported_or_skipped": "lost data",
    "test_jobs.py::test_flights_flow_through_all_four_jobs": "the jobs",
}

_DASHBOARD: Final[Mapping[str, str]] = {
    "test_tour.py::test_links_reach_all_pages": "each page in a browser, without an error or a call of another host",
    "test_tour.py::test_hostile_text": "names and bodies of attackers",
    "test_tour.py::test_axe_finds_nothing[light": "accessibility",
    "test_tour.py::test_no_page_is_wider": "a phone",
    "test_proxy.py::": "a path of a proxy",
    "test_visits.py::test_all_pages_and_changes_work[account": "brokers with accounts, in a browser",
}

CORE: Final[Mapping[str, str]] = {
    **{f"tests/interop/{prefix}": why for prefix, why in _INTEROP.items()},
    **{f"tests/spark/{prefix}": why for prefix, why in _SPARK.items()},
    **{f"tests/dashboard/{prefix}": why for prefix, why in _DASHBOARD.items()},
}


def reason(nodeid: str) -> str | None:
    """Return why a test is in the core; ``None`` if it is not."""
    return next((why for prefix, why in CORE.items() if nodeid.startswith(prefix)), None)
