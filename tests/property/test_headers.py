"""Every typed header as a law: what one peer wrote is what the other reads, through each serialisation."""

from dataclasses import fields
from typing import Any, get_args, get_type_hints

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from triomq.protocol.codes import SerializeType
from triomq.protocol.errors import ProtocolError
from triomq.protocol.requests import groups, messages, offsets, topics
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.headers import Bits, Header, unwrap

CLASSES = [
    value
    for module in (groups, messages, offsets, topics)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, Header) and value is not Header
]

#: The same examples in every run; few, because there are four dozen classes.
REPEATABLE = settings(max_examples=20, deadline=None, derandomize=True)

#: What looks like a number, or nearly.
NUMBER_LIKE = st.one_of(
    st.integers().map(str),
    st.integers(-(2**64), 2**64).map(str),
    st.text(alphabet="0123456789+-_ .eExXaA\t\n\u0661\u00b2", max_size=24),
    st.text(max_size=8),
)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for a field's type, which may be ``None``, and have a width."""
    kind, notes = unwrap(hint)
    limit = 2 ** ([note.width for note in notes if isinstance(note, Bits)] or [64])[0] // 2
    values = {str: st.text(max_size=30), bool: st.booleans(), int: st.integers(-limit, limit - 1)}[kind]
    return values | st.none() if type(None) in get_args(hint) else values


def headers_of(cls: type[Header]) -> st.SearchStrategy[Header]:
    hints = get_type_hints(cls, include_extras=True)
    return st.builds(cls, **{field.name: values_of(hints[field.name]) for field in fields(cls)})


@pytest.mark.parametrize("cls", CLASSES)
@REPEATABLE
@given(data=st.data(), serialize_type=st.sampled_from(list(SerializeType)))
def test_header_round_trips_in_each_serialisation(cls: type[Header], data: st.DataObject, serialize_type: int) -> None:
    header = data.draw(headers_of(cls))
    command = RemotingCommand(10, ext_fields=header.encode(), serialize_type=serialize_type)
    arrived = RemotingCommand.decode(command.encode()[4:])
    assert cls.decode(arrived.ext_fields) == header


@pytest.mark.parametrize("cls", CLASSES)
@REPEATABLE
@given(data=st.data())
def test_header_writes_text_under_distinct_names(cls: type[Header], data: st.DataObject) -> None:
    """Trap 3: every value in extFields is text."""
    header = data.draw(headers_of(cls))
    encoded = header.encode()
    assert {type(text) for text in encoded.values()} <= {str}
    assert len(encoded) == sum(getattr(header, field.name) is not None for field in fields(cls))


@pytest.mark.parametrize("cls", CLASSES)
@REPEATABLE
@given(data=st.data())
def test_text_header_decodes_or_error_names_field(cls: type[Header], data: st.DataObject) -> None:
    written = data.draw(headers_of(cls).map(Header.encode).filter(bool))  # a class may have optional fields only
    name = data.draw(st.sampled_from(sorted(written)))
    written[name] = data.draw(NUMBER_LIKE)
    try:
        header = cls.decode(written)
    except ProtocolError as exc:
        message = str(exc)
    else:
        message = f"{cls.__name__} {name!r}"
        assert cls.decode(header.encode()) == header
    assert cls.__name__ in message
    assert repr(name) in message
