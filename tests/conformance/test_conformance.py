"""The official conformance suite's scenarios for clients: a run of the real service against each one's server.

Authorization (`auth/…`) and extensions of the protocol are not among them.
"""

import pytest

from tests.conformance.suite import Scenario, install, play, scenarios

pytestmark = [pytest.mark.node, pytest.mark.timeout(180)]

SCENARIOS: list[Scenario] = [
    ("initialize", "2025-11-25"),
    ("tools_call", "2025-11-25"),
    ("tools_call", "2026-07-28"),
    ("elicitation-sep1034-client-defaults", "2025-11-25"),
    ("sse-retry", "2025-11-25"),
    ("request-metadata", "2026-07-28"),
    ("sep-2322-client-request-state", "2026-07-28"),
    ("http-standard-headers", "2026-07-28"),
    ("http-custom-headers", "2026-07-28"),
    ("http-invalid-tool-headers", "2026-07-28"),
    ("json-schema-ref-no-deref", "2026-07-28"),
    ("json-schema-2020-12-preservation", "2025-11-25"),
    ("json-schema-2020-12-preservation", "2026-07-28"),
]


@pytest.fixture(scope="module", autouse=True)
def _suite() -> None:
    install()


def test_every_scenario_of_the_suite_is_played() -> None:
    assert scenarios() == SCENARIOS


@pytest.mark.parametrize("scenario", SCENARIOS, ids="@".join)
def test_scenario_passes(scenario: Scenario) -> None:
    verdict = play(scenario)
    print(verdict.log)  # noqa: T201  # shown where it fails
    assert verdict.complaints == []
