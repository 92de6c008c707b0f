"""The error tree: as printed in its module, and one class for each response code."""

import copy
import pickle
from collections.abc import Iterator

import pytest

from triomq.protocol import errors
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import (
    BrokerResponseError,
    BrokerSystemError,
    SystemBusyError,
    TopicNotExistError,
    TriomqError,
)

#: Codes that are an answer, not a failure; wire.md 3 and 5.2.  The rest of those without a class is unused or rare.
NO_CLASS_NEEDED = {
    *(ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE),
    *(ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY),
    *(ResponseCode.PULL_OFFSET_MOVED, ResponseCode.TRANSACTION_FAILED, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    *(ResponseCode.FILTER_DATA_NOT_EXIST, ResponseCode.FILTER_DATA_NOT_LATEST, ResponseCode.CONSUME_MSG_TIMEOUT),
    *(ResponseCode.FLOW_CONTROL, ResponseCode.GO_AWAY, ResponseCode.ILLEGAL_OPERATION),
    *(ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED, ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED),
}


def classes() -> list[type[TriomqError]]:
    return [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, TriomqError)]


def printed_tree() -> Iterator[tuple[str, str]]:
    """Yield name and parent's name of each line of the tree in the module's docstring."""
    stack: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if not line.startswith("    "):
            continue
        depth, name = line.index(line.lstrip(" |-`")[0]) // 3, line.lstrip(" |-`").split()[0]
        del stack[depth - 1 :]
        yield name, stack[-1] if stack else "Exception"
        stack.append(name)


def test_tree_in_docstring_is_tree_of_classes() -> None:
    tree = dict(printed_tree())
    assert len(tree) > 20
    real = {cls.__name__: cls.__mro__[1].__name__ for cls in classes()}
    assert tree == {name: base for name, base in real.items() if base != "BrokerResponseError"}


def test_every_code_that_is_failure_has_one_class() -> None:
    assert set(BrokerResponseError.by_code) >= set(ResponseCode) - NO_CLASS_NEEDED
    for code, cls in BrokerResponseError.by_code.items():
        assert cls.response_code == code
        assert cls.__doc__
        assert cls.__doc__.startswith(f"{ResponseCode(code).name}({int(code)}): ")


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        (1, BrokerSystemError),
        (2, SystemBusyError),
        (17, TopicNotExistError),
        (0, BrokerResponseError),
        (9999, BrokerResponseError),
    ],
)
def test_a_response_becomes_the_error_of_its_code(code: int, cls: type[BrokerResponseError]) -> None:
    error = BrokerResponseError.from_response(code, "why", "10.0.0.1:10911")
    assert type(error) is cls
    assert (error.code, error.remark, error.address) == (code, "why", "10.0.0.1:10911")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (BrokerResponseError(17, "no route", "h:1"), "TOPIC_NOT_EXIST(17) from h:1: no route"),
        (BrokerResponseError(17, "no route"), "TOPIC_NOT_EXIST(17): no route"),
        (BrokerResponseError.from_response(9999, None, "h:1"), "UNKNOWN(9999) from h:1: no reason given"),
    ],
)
def test_the_text_names_code_peer_and_remark(error: BrokerResponseError, text: str) -> None:
    assert str(error) == text


def test_second_class_for_one_code_is_programming_error() -> None:
    with pytest.raises(TypeError, match="code 17 has an error class already"):
        type("SecondError", (BrokerResponseError,), {}, response_code=ResponseCode.TOPIC_NOT_EXIST)
    type("OwnError", (TopicNotExistError,), {})  # users may derive errors
    assert BrokerResponseError.by_code[17] is TopicNotExistError


@pytest.mark.parametrize("error", [BrokerResponseError(9999, "why", "h:1"), TopicNotExistError(17, "no route")])
def test_a_broker_error_survives_copying_and_pickling(error: BrokerResponseError) -> None:
    """Errors travel between processes."""
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert (again.code, again.remark, again.address) == (error.code, error.remark, error.address)
