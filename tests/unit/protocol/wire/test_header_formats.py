"""The table of header formats."""

import pytest

from triomq.protocol.codes import SerializeType
from triomq.protocol.wire.header_formats import FORMATS, FORMATS_FIELD, accept


def test_each_serialize_type_has_a_format() -> None:
    assert set(FORMATS) == set(SerializeType)


@pytest.mark.parametrize(
    ("offered", "accepted"),
    [
        ({}, {}),
        ({FORMATS_FIELD: ""}, {}),
        ({FORMATS_FIELD: "cbor"}, {}),
        ({FORMATS_FIELD: "cbor,msgpack"}, {FORMATS_FIELD: "msgpack"}),
    ],
)
def test_only_formats_that_we_read_are_accepted(offered: dict[str, str], accepted: dict[str, str]) -> None:
    assert accept(offered) == accepted
