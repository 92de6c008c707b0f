import pytest

from triomq.cli.errors import IncompleteError, UsageError, exit_code_of, is_expected, leaves, one_line
from triomq.protocol import errors as e


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (e.ConnectError("x"), 3),
        (e.ConnectionLostError("x"), 3),
        (e.RequestTimeoutError("x"), 3),
        (e.NameServerError("x"), 3),
        (e.ConfigError("x"), 2),
        (UsageError("x"), 2),
        (e.IllegalNameError("x"), 2),
        (e.SubscriptionParseError("x"), 2),
        (e.NoRouteError("x"), 1),
        (e.TopicNotExistError(17, "x"), 1),
        (e.StoreLockedError("x"), 1),
        (e.ProtocolError("x"), 1),
        (IncompleteError("x"), 1),
        (OSError("x"), 1),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error: Exception, code: int) -> None:
    assert is_expected(error)
    assert exit_code_of(error) == code


def test_a_defect_is_no_expected_error() -> None:
    assert not is_expected(KeyError("x"))


def test_an_error_of_many_lines_becomes_one_line() -> None:
    assert one_line(e.ClientError("first\n  second\r\nthird")) == "first second third"
    assert one_line(e.ClientError("")) == "ClientError"


def test_an_error_does_not_steer_the_terminal() -> None:
    """A broker's remark is in it."""
    assert "bad \\x1b[2J\\x9b1m" in one_line(e.BrokerSystemError(1, "bad \x1b[2J\x9b1m"))


def test_errors_without_advice_get_a_hint() -> None:
    assert one_line(e.TopicNotExistError(17, "no T", "1.2.3.4:5")).endswith("create it: triomq topic create TOPIC")
    assert one_line(e.SystemBusyError(2, "busy")).endswith("--rate")


def test_errors_of_nested_groups_are_in_order() -> None:
    first, second = ValueError(1), ValueError(2)
    group = BaseExceptionGroup("g", [ExceptionGroup("h", [first]), second])
    assert list(leaves(group)) == [first, second]
    assert list(leaves(first)) == [first]
