from triomq.client.admin.messages import Traced, steps
from triomq.protocol.trace import ConsumeBegun, ConsumeEnded, Published, Recalled, TransactionEnded

SENT = Published(10, "R", "P", "T", "ID", "", "", "broker:1", 4, 2)


def test_each_call_of_a_handler_is_one_step() -> None:
    rows = steps(
        [
            Traced(ConsumeEnded("r2", "ID", 7, False, "", 2, 40, "C"), "b"),
            Traced(ConsumeBegun(30, "R", "C", "r2", "ID", 1, ""), "b"),
            Traced(ConsumeBegun(20, "R", "C", "r1", "ID", 0, ""), "a"),
            Traced(SENT, "p"),
        ]
    )
    found = [(row["time_ms"], row["what"], row["topic"], row["client"], row["try"], row["result"]) for row in rows]
    assert found == [
        (10, "sent", "T", "p", None, "ok"),
        (20, "consumed", "T", "a", 1, "not ended"),
        (30, "consumed", "T", "b", 2, "raised"),
    ]
    assert [row["took_milliseconds"] for row in rows] == [2, None, 7]


def test_an_end_without_its_beginning_is_shown() -> None:
    (row,) = steps([Traced(ConsumeEnded("r", "ID", 7, True, ""), "a")])
    assert (row["time_ms"], row["group"], row["try"], row["result"]) == (None, None, None, "ok")
    (row,) = steps([Traced(ConsumeEnded("r", "ID", 7, False, "", 99), "a")])
    assert row["result"] == "failed"


def test_decisions_and_recalls_are_shown() -> None:
    decided = TransactionEnded(1, "R", "P", "T", "ID", "", "", "broker:1", 2, "ID", "COMMIT_MESSAGE", False)
    checked = TransactionEnded(2, "R", "P", "T", "ID", "", "", "broker:1", 2, "ID", "ROLLBACK_MESSAGE", True)
    rows = steps([Traced(decided, "p"), Traced(checked, "p"), Traced(Recalled(3, "R", "P", "T", "ID", False), "p")])
    assert [(row["what"], row["result"]) for row in rows] == [
        ("decided", "committed"),
        ("decided after a check", "rolled back"),
        ("recalled", "failed"),
    ]
