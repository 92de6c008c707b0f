from collections.abc import Iterator

import pytest

from triomq.testing import RunningBroker, open_broker


@pytest.fixture(scope="module")
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker with the accounts of the module."""
    path = tmp_path_factory.mktemp("accounts") / "plain_acl.yml"
    path.write_text(request.module.ACCOUNTS)
    with open_broker(acl=path) as broker:
        yield broker
