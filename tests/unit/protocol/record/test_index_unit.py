"""index_unit: structs of index files and hashes of keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.protocol.java import java_hash
from triomq.protocol.record.index_unit import KEY_WIDTH, fold_hash, key_hash, key_hashes, topic_share

KEYS = st.lists(st.text(st.characters(max_codepoint=127), max_size=KEY_WIDTH))


@given(st.text(max_size=20), st.text(max_size=100))
def test_hash_of_key_is_amount_of_javas_hash(topic: str, key: str) -> None:
    hashed = java_hash(f"{topic}#{key}")
    assert key_hash(topic, key) == (0 if hashed == -(2**31) else abs(hashed))


def test_a_hash_without_an_amount_is_0() -> None:
    assert java_hash("polygenelubricants") == -(2**31)
    assert fold_hash(java_hash("polygenelubricants")) == 0
    assert fold_hash(2**31 - 1) == fold_hash(1 - 2**31) == 2**31 - 1


@given(st.text(max_size=127), KEYS)
def test_bulk_hashes_equal_single_hashes(topic: str, keys: list[str]) -> None:
    share = topic_share(topic)
    hashes = key_hashes([key.encode() for key in keys], [share[len(key)] for key in keys])
    assert hashes == [key_hash(topic, key) for key in keys]


@pytest.mark.parametrize("length", [1, 32, 33, 56, KEY_WIDTH])
def test_more_keys_than_fit_one_number_hashed_alike(length: int) -> None:
    keys = [f"{number:0{KEY_WIDTH}X}"[-length:] for number in range(1300)]
    share = topic_share("T")[length]
    assert key_hashes([key.encode() for key in keys], [share] * len(keys)) == [key_hash("T", key) for key in keys]


def test_hash_in_batch_without_amount_is_0() -> None:
    share = -java_hash("abc") + 2**31
    assert key_hashes([b"abc"], [share]) == [0]
