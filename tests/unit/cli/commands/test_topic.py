import pytest

from triomq.cli.commands.topic import permission_text


@pytest.mark.parametrize(("perm", "text"), [(6, "rw"), (4, "r"), (2, "w"), (0, "none"), (1, "none"), (7, "rw")])
def test_permissions_are_read_and_write(perm: int, text: str) -> None:
    assert permission_text(perm) == text
