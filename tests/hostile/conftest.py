"""The service that is attacked: one process for all tests of a worker."""

from collections.abc import Iterator

import pytest

from tests.fakes.hostile import Victim, open_victim


@pytest.fixture(scope="session")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    with open_victim(tmp_path_factory.mktemp("victim")) as victim:
        yield victim
