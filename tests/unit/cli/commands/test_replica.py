"""The output of ``triomq replica status``."""

from triomq.cli.commands.replica import describe, rows
from triomq.client import Replica, SlaveCopy

COPIES = (SlaveCopy("10.0.0.2:5", 700, 1536, 40, None), SlaveCopy("10.0.0.3:6", None, 1000, None, None))
MASTER = Replica("a", 0, "10.0.0.1:1", "sync-master", 1000, copies=COPIES)
SLAVE = Replica("a", 1, "10.0.0.2:1", "slave", 800, 200, "10.0.0.1:2", is_in_touch=True)


def test_table_has_row_per_broker_and_connection() -> None:
    away = Replica("a", 2, "10.0.0.3:1", error="no answer; try again")
    unknown, of_apache_4 = SLAVE._replace(is_in_touch=None), MASTER._replace(copies=None)
    lost = SLAVE._replace(is_in_touch=False)
    assert list(rows([MASTER, SLAVE, lost, lost._replace(master=None), away, unknown, of_apache_4])) == [
        ("a", 0, "10.0.0.1:1", "sync-master", 1000, None, None, "-", "2 slaves connected"),
        ("a", None, "10.0.0.2:5", "connection", 700, "1.5 KiB", 0.04, "-", "in touch"),
        ("a", None, "10.0.0.3:6", "connection", None, "1000 bytes", None, "-", "has not reported yet"),
        ("a", 1, "10.0.0.2:1", "slave", 800, "200 bytes", None, "-", "in touch with 10.0.0.1:2"),
        ("a", 1, "10.0.0.2:1", "slave", 800, "200 bytes", None, "-", "out of touch with 10.0.0.1:2"),
        ("a", 1, "10.0.0.2:1", "slave", 800, "200 bytes", None, "-", "knows no master"),
        ("a", 2, "10.0.0.3:1", None, None, None, None, "-", "no answer"),
        ("a", 1, "10.0.0.2:1", "slave", 800, "200 bytes", None, "-", None),
        ("a", 0, "10.0.0.1:1", "sync-master", 1000, None, None, "-", None),
    ]


def test_json_has_each_connection_of_a_master() -> None:
    assert describe(SLAVE)["slaves"] is None
    copy, silent = describe(MASTER)["slaves"]
    assert copy == {
        "address": "10.0.0.2:5",
        "end": 700,
        "lag_bytes": 1536,
        "lag_s": 0.04,
        "reported_ms": None,
        "in_touch": True,
    }
    assert (silent["end"], silent["lag_s"], silent["in_touch"]) == (None, None, False)
