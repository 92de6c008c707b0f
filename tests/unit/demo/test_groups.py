from collections import Counter
from zlib import crc32

from triomq.demo.flights import Expected, Flight
from triomq.demo.groups import Group

FLIGHTS = [Flight("UA", "N1", b"a"), Flight("UA", "N2", b"b"), Flight("DL", "N3", b"c")]


def group() -> Group:
    return Group("g", "*", Expected(Counter(UA=2, DL=1), sum(crc32(flight.line) for flight in FLIGHTS)))


def give(to: Group, member: int, flight: Flight) -> None:
    to.members[member].by_carrier[flight.carrier] += 1
    to.members[member].checksum += crc32(flight.line)


def test_everything_once_is_right_whoever_got_it() -> None:
    found = group()
    for number, flight in enumerate(reversed(FLIGHTS)):
        give(found, number % 2, flight)
    assert found.differences() == []
    assert found.consumed == 3


def test_missing_repeated_and_foreign_flights_list_by_carrier() -> None:
    found = group()
    give(found, 0, FLIGHTS[0])
    give(found, 1, FLIGHTS[2])
    give(found, 1, FLIGHTS[2])
    give(found, 1, Flight("AA", "N4", b"d"))
    assert found.differences() == ["AA: 1 instead of 0", "DL: 2 instead of 1", "UA: 1 instead of 2"]


def test_changed_contents_are_noticed() -> None:
    found = group()
    for flight in (FLIGHTS[0], FLIGHTS[0], FLIGHTS[2]):
        give(found, 0, flight)
    assert found.differences() == ["the counts are right, but the contents are not"]


def test_a_group_waits_for_the_flights_it_wants_only() -> None:
    wanting = Group("g", "DL", Expected(Counter(DL=1), 0))
    assert wanting.expected_of(FLIGHTS) == 1
