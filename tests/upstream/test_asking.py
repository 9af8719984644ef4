"""What a run's model is asked in, and what is learned of it for others."""

import asyncio
from dataclasses import replace
from typing import Any

import anyio
import pytest

from app.domain.messages import Tool, ToolSpec
from app.domain.ports import Ask, ModelFacts
from app.domain.principal import NOBODY
from app.domain.spec import RunSpec
from app.upstream.asking import Candidate, Lessons, RunModel
from app.upstream.quirks import Quirks, quirks_with
from tests.fakes.upstream import Answer, Request, failure, stream
from tests.upstream.asking import GOOD, serving

pytestmark = pytest.mark.anyio


def test_what_two_runs_learned_at_the_same_time_is_all_kept() -> None:
    lessons, before = Lessons(), Quirks()
    facts: list[dict[str, Any]] = [
        {"leaveOut": ["stream_options"], "callIds": "nine"},
        {"leaveOut": ["seed"], "maxTools": 5},
        {"schema": {"patterns": False, "without": ["title"]}},
        {"schema": {"formats": "none", "without": ["examples"]}},
    ]
    for changed in facts:
        lessons.learn("m", NOBODY, base=before, before=before, after=quirks_with(before, changed))
    for name in "ab":
        lessons.learn("m", NOBODY, base=before, before=before, after=replace(before, refused_tools=(name,)))
    schema = {"patterns": False, "formats": "none", "without": ["title", "examples"]}
    expected = {"leaveOut": ["stream_options", "seed"], "callIds": "nine", "maxTools": 5, "schema": schema}
    assert lessons.of("m", NOBODY) == replace(quirks_with(before, expected), refused_tools=("a", "b"))


def test_names_that_callers_make_up_do_not_pile_up() -> None:
    lessons = Lessons()
    for number in range(3000):
        lessons.learn(
            f"m{number}", NOBODY, base=Quirks(), before=Quirks(), after=quirks_with(Quirks(), {"callIds": "nine"})
        )
    assert lessons.of("m0", NOBODY) is None
    assert lessons.of("m2999", NOBODY) is not None


def test_what_callers_servers_bring_does_not_pile_up() -> None:
    lessons, before = Lessons(), Quirks()
    for number in range(1000):
        lessons.learn("m", NOBODY, base=before, before=before, after=replace(before, refused_tools=(str(number),)))
        schema = {"schema": {"without": [f"x-{number}"]}}
        lessons.learn("m", NOBODY, base=before, before=before, after=quirks_with(before, schema))
    known = lessons.of("m", NOBODY)
    assert known is not None
    assert len(known.refused_tools) == 256
    assert known.refused_tools[-1] == "999"
    assert len(known.schema.without) <= 64


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
    script = [failure(400, "unknown field stream_options"), stream(asyncio.Event())]
    async with serving(script) as (upstream, endpoint):
        lessons = Lessons()
        model = RunModel(endpoint, lessons, [Candidate(ModelFacts("m"))], RunSpec(messages=()))

        async def ask() -> None:
            async with model.stream(Ask([]), lambda _: None):
                pytest.fail("nothing was answered")

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                await upstream.wait_for(lambda up: len(up.asks) == 2)
                tasks.cancel_scope.cancel()
            await upstream.wait_for(lambda up: up.asks[1].closed_early.is_set())
        assert len(upstream.asks) == 2
        assert lessons.of("m", NOBODY) is None


async def test_tools_that_a_change_left_are_the_same_in_later_rounds() -> None:
    tools = [
        Tool(ToolSpec(f"{server}{number}", "x", {"type": "object"}), server, "t") for server in "ab" for number in "12"
    ]
    script = [failure(400, "too many functions"), GOOD, GOOD]
    async with serving(script) as (upstream, endpoint):
        base = quirks_with(Quirks(), {"maxTools": 3})
        model = RunModel(endpoint, Lessons(), [Candidate(ModelFacts("m"), base)], RunSpec(messages=()))
        offered = [tool.spec.name for tool in model.offered(tools)]
        for _ in range(2):
            async with model.stream(Ask([{"role": "user", "content": "Hi"}], tools), lambda _: None) as batches:
                assert [batch async for batch in batches]
    sent = [[tool["function"]["name"] for tool in request.json["tools"]] for request in upstream.asks]
    assert sent[0] == offered
    assert sent[1] == sent[2]
    assert set(sent[1]) < set(offered)


async def test_what_was_told_of_is_what_has_helped() -> None:
    def script(request: Request) -> Answer:
        parameters = request.json["tools"][0]["function"]["parameters"]["properties"]["to"]
        return failure(400, "schema: grammar could not be built at column 77") if "format" in parameters else GOOD

    schema = {"type": "object", "properties": {"to": {"type": "string", "pattern": "^x$", "format": "email"}}}
    tool = Tool(ToolSpec("mail", "Mails.", schema), "box", "mail")
    told: list[Any] = []
    async with serving(script) as (_, endpoint):
        lessons = Lessons()
        model = RunModel(endpoint, lessons, [Candidate(ModelFacts("m"))], RunSpec(messages=()))
        async with model.stream(Ask([{"role": "user", "content": "Hi"}], [tool]), told.append) as batches:
            assert [batch async for batch in batches]
    assert [notice.message for notice in told] == [
        "The model's endpoint does not take formats in tool schemas, so they were left out."
    ]
    known = lessons.of("m", NOBODY)
    assert known is not None
    assert (known.schema.patterns, known.schema.formats) == (True, "none")


async def test_forcing_tools_once_says_nothing_about_the_model() -> None:
    base = quirks_with(Quirks(), {"tools": False})
    async with serving([failure(400, "unknown field stream_options"), GOOD]) as (_, endpoint):
        lessons = Lessons()
        model = RunModel(endpoint, lessons, [Candidate(ModelFacts("m"), base)], RunSpec(messages=(), force_tools=True))
        async with model.stream(Ask([{"role": "user", "content": "Hi"}]), lambda _: None) as batches:
            assert [batch async for batch in batches]
    assert lessons.of("m", NOBODY) == quirks_with(base, {"leaveOut": ["stream_options"]})


async def test_thoughts_of_one_model_are_not_sent_to_the_next() -> None:
    def script(request: Request) -> Answer:
        return failure(500, "down") if request.json["model"] == "a" else GOOD

    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "x"},
    ]
    ask = Ask(messages, thoughts={"c1": {"reasoning_content": "hm"}})
    echo = quirks_with(Quirks(), {"reasoning": "echo"})
    async with serving(script) as (upstream, endpoint):
        candidates = [Candidate(ModelFacts(name), echo) for name in "ab"]
        model = RunModel(endpoint, Lessons(), candidates, RunSpec(messages=()))
        async with model.stream(ask, lambda _: None) as batches:
            assert [batch async for batch in batches]
    sent = {request.json["model"]: request.json["messages"][0] for request in upstream.asks}
    assert sent["a"]["reasoning_content"] == "hm"
    assert "reasoning_content" not in sent["b"]


async def test_too_many_complaints_about_tools_end_in_a_request_without_any() -> None:
    tools = [Tool(ToolSpec(f"t{number}", "x", {"type": "object"}), "box", f"t{number}") for number in range(40)]

    def script(request: Request) -> Answer:
        names = [tool["function"]["name"] for tool in request.json.get("tools", ())]
        return failure(400, f"bad schema for function '{names[0]}'") if names else GOOD

    told: list[Any] = []
    async with serving(script) as (upstream, endpoint):
        lessons = Lessons()
        model = RunModel(endpoint, lessons, [Candidate(ModelFacts("m"))], RunSpec(messages=()))
        async with model.stream(Ask([{"role": "user", "content": "Hi"}], tools), told.append) as batches:
            assert [batch async for batch in batches]
    assert len(upstream.asks) == 18
    assert told[-1].code == "tools_refused"
    known = lessons.of("m", NOBODY)
    assert known is not None
    assert known.tools
    assert len(known.refused_tools) == 16
