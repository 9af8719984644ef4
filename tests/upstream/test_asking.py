"""What a run's model is asked in, and what is learned of it for others."""

from dataclasses import replace

import anyio
import pytest

from app.domain.ports import Ask, ModelFacts
from app.domain.spec import RunSpec
from app.upstream.asking import Candidate, Lessons, RunModel
from app.upstream.quirks import Quirks, quirks_with
from tests.fakes.upstream import Answer, Request, end, failure, stream, text
from tests.upstream.asking import GOOD, serving

pytestmark = pytest.mark.anyio


def test_what_two_runs_learned_at_the_same_time_is_all_kept() -> None:
    lessons, before = Lessons(), Quirks()
    lessons.learn("m", before, quirks_with(before, {"leaveOut": ["stream_options"], "callIds": "nine"}))
    lessons.learn("m", before, quirks_with(before, {"leaveOut": ["seed"], "maxTools": 5}))
    lessons.learn("m", before, replace(before, refused_tools=("a",)))
    lessons.learn("m", before, replace(before, refused_tools=("b",)))
    expected = {"leaveOut": ["stream_options", "seed"], "callIds": "nine", "maxTools": 5}
    assert lessons.of("m") == replace(quirks_with(before, expected), refused_tools=("a", "b"))


def test_names_that_callers_make_up_do_not_pile_up() -> None:
    lessons = Lessons()
    for number in range(3000):
        lessons.learn(f"m{number}", Quirks(), quirks_with(Quirks(), {"callIds": "nine"}))
    assert lessons.of("m0") is None
    assert lessons.of("m2999") is not None


async def test_what_is_learned_of_one_model_is_not_held_against_another() -> None:
    def script(request: Request) -> Answer:
        is_picky = request.json["model"] == "picky" and "stream_options" in request.json
        return failure(400, "unknown field stream_options") if is_picky else GOOD

    async with serving(script) as (upstream, endpoint):
        lessons = Lessons()
        for name in ("picky", "other", "picky"):
            model = RunModel(endpoint, lessons, [Candidate(ModelFacts(name))], RunSpec(messages=()))
            async with model.stream(Ask([{"role": "user", "content": "Hi"}]), lambda _: None) as batches:
                assert [batch async for batch in batches]
    assert [(ask.json["model"], "stream_options" in ask.json) for ask in upstream.asks] == [
        ("picky", True),
        ("picky", False),
        ("other", True),
        ("picky", False),
    ]


async def test_cancelling_between_two_requests_ends_the_asking_at_once_and_learns_nothing() -> None:
    async with serving([failure(400, "unknown field stream_options"), stream(text("Hi"), end())]) as (
        upstream,
        endpoint,
    ):
        lessons = Lessons()
        model = RunModel(endpoint, lessons, [Candidate(ModelFacts("m"))], RunSpec(messages=()))
        with anyio.fail_after(5), anyio.CancelScope() as scope:
            async with model.stream(Ask([]), lambda _: scope.cancel()):
                pytest.fail("nothing was answered")
        assert scope.cancelled_caught
        assert len(upstream.asks) == 1
        assert lessons.of("m") is None
