"""What models there are, and which one a run gets."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from app.domain.errors import ModelNotFound, ModelRequired, RunError, UpstreamFailed
from app.domain.ports import Ask, ModelFacts
from app.domain.spec import RunSpec
from app.upstream.catalogue import ListedModel, ModelCatalogue, facts_from_list, models_from_json
from app.upstream.endpoint import Options, open_endpoint
from app.upstream.router import Route, Router
from tests.fakes.upstream import (
    Answer,
    FakeUpstream,
    Script,
    end,
    failure,
    json_answer,
    models,
    open_upstream,
    page,
    stream,
    text,
)

pytestmark = pytest.mark.anyio

LISTED = (ListedModel("small", parameters={"temperature": 0.1, "top_p": 1}), ListedModel("big", supports_tools=False))


def test_the_setting_is_read() -> None:
    found = models_from_json(
        """[{"id": "a", "name": "A", "supportsTools": false, "multimodal": true, "contextLength": 4096,
             "parameters": {"temperature": 0}, "preservesReasoning": true, "logo": "x", "quirks": {"callIds": "nine"}},
            {"id": "b", "supportsTools": null, "parameters": null}]"""
    )
    assert found == (
        ListedModel(
            "a",
            supports_tools=False,
            multimodal=True,
            preserves_reasoning=True,
            context_length=4096,
            parameters={"temperature": 0},
            name="A",
            quirks={"callIds": "nine"},
        ),
        ListedModel("b"),
    )


@pytest.mark.parametrize("setting", ["", "  ", "[]"])
def test_a_blank_setting_lists_nothing(setting: str) -> None:
    assert models_from_json(setting) == ()


UNREADABLE = {
    "[": "no JSON",
    "{}": "a JSON list",
    '["a"]': r"MODELS\[0\] must be an object",
    '[{"id": "a"}, {"name": "b"}]': r"MODELS\[1\] must have an `id`",
    '[{"id": " "}]': r"MODELS\[0\] must have an `id`",
    '[{"id": "a", "supportsTools": "yes"}]': r"MODELS\[0\] \(a\): `supportsTools` must be true or false",
    '[{"id": "a", "contextLength": true}]': "`contextLength` must be a whole number",
    '[{"id": "a", "parameters": []}]': "`parameters` must be an object",
    '[{"id": "a", "quirks": {"callId": "nine"}}]': r"`quirks`: `callId` is not known; there are: tools,",
    '[{"id": "a", "quirks": {"schema": {"typeLists": "none"}}}]': "`schema.typeLists` must be one of: keep, single",
    '[{"id": "a", "quirks": {"maxTools": 0}}]': "`maxTools` must be a whole number from 1",
    '[{"id": "a", "quirks": []}]': "`quirks` must be an object",
    '[{"id": "a", "name": 7}]': "`name` must be a text",
    '[{"id": "a"}, {"id": "a"}]': r"MODELS\[1\]: the id 'a' is there twice",
}


@pytest.mark.parametrize(("setting", "message"), UNREADABLE.items())
def test_an_unreadable_setting_names_its_entry(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models_from_json(setting)


def test_a_default_that_is_not_offered_stops_the_start() -> None:
    endpoint: Any = None
    with pytest.raises(ValueError, match="'huge' is not in MODELS"):
        ModelCatalogue(endpoint, LISTED, "huge")


def run(model: str | None = None) -> RunSpec:
    return RunSpec(messages=(), model=model)


CHOICES: list[tuple[tuple[ListedModel, ...], str | None, str | None, str | type[Exception]]] = [
    (LISTED, None, "big", "big"),
    (LISTED, None, "huge", ModelNotFound),
    (LISTED, None, None, "small"),
    (LISTED, "big", None, "big"),
    (LISTED, "big", "small", "small"),
    ((), None, "anything", "anything"),
    ((), "preset", None, "preset"),
    ((), None, None, "first"),
    ((), None, "second", "second"),
]


@pytest.mark.parametrize(("listed", "default", "named", "expected"), CHOICES)
async def test_a_run_gets_its_model(
    listed: tuple[ListedModel, ...], default: str | None, named: str | None, expected: str | type[Exception]
) -> None:
    async with (
        open_upstream([], models_script=lambda _: models("first", "second")) as upstream,
        open_endpoint(Options(upstream.url)) as endpoint,
    ):
        catalogue = ModelCatalogue(endpoint, listed, default)
        if isinstance(expected, str):
            assert (await catalogue.choose(run(named), wants_tools=False)).id == expected
        else:
            with pytest.raises(expected) as caught:
                await catalogue.choose(run(named), wants_tools=False)
            assert getattr(caught.value, "param", None) == "model"
        # The operator's list is all that there is to know; without one the endpoint's tells what its models can do.
        assert len(upstream.requests) == (0 if listed else 1)


async def _with_models(script: Script) -> tuple[ModelFacts | Exception, list[str]]:
    async with open_upstream([], models_script=script) as upstream, open_endpoint(Options(upstream.url)) as endpoint:
        catalogue = ModelCatalogue(endpoint)
        try:
            chosen = await catalogue.choose(run(), wants_tools=False)
        except Exception as error:  # noqa: BLE001 - the row says which
            return error, [facts.id for facts in await catalogue.models()]
        return chosen, [facts.id for facts in await catalogue.models()]


UNTOLD: dict[str, tuple[Answer, type[Exception]]] = {
    "no models": (models(), ModelRequired),
    "an error": (failure(500, "boom"), UpstreamFailed),
    "a page": (page("<html>"), UpstreamFailed),
    "JSON of another kind": (json_answer({"data": 7}), ModelRequired),
    "a lost connection": (Answer(status=0), RunError),
    "JSON that nests without end": (page("[" * 200_000, content_type="application/json"), UpstreamFailed),
}


@pytest.mark.parametrize(("answer", "kind"), UNTOLD.values(), ids=UNTOLD.keys())
async def test_an_endpoint_that_does_not_tell_is_harmless_for_the_list(answer: Answer, kind: type[Exception]) -> None:
    chosen, listed = await _with_models(lambda _: answer)
    assert isinstance(chosen, kind)
    assert listed == []


@pytest.mark.parametrize("status", [404, 405])
async def test_an_endpoint_without_a_list_has_no_default_model(status: int) -> None:
    async with open_upstream([], models_script=[failure(status, "no such route")]) as upstream:
        async with open_endpoint(Options(upstream.url)) as endpoint:
            with pytest.raises(ModelRequired):
                await ModelCatalogue(endpoint).choose(RunSpec(messages=()), wants_tools=False)


TAKES_NO_TOOLS: dict[str, tuple[ListedModel, ...]] = {
    "by the setting": models_from_json('[{"id": "m", "supportsTools": true, "quirks": {"tools": false}}]'),
    "by what it is said to support": models_from_json('[{"id": "m", "supportsTools": false}]'),
}


@pytest.mark.parametrize("listed", TAKES_NO_TOOLS.values(), ids=TAKES_NO_TOOLS.keys())
async def test_a_model_that_takes_no_tools_is_known_for_it_and_passed_over(listed: tuple[ListedModel, ...]) -> None:
    endpoint: Any = NoEndpoint()
    router = Router(Route("chat", ("m", "n")))
    catalogue = ModelCatalogue(endpoint, (*listed, ListedModel("n")), router=router)
    assert not (await catalogue.choose(run("m"), wants_tools=True)).supports_tools
    assert (await catalogue.choose(run("omni"), wants_tools=True)).id == "n"
    assert [facts.supports_tools for facts in await catalogue.models()] == [False, True, True]


async def test_a_model_that_takes_no_images_is_known_for_it() -> None:
    endpoint: Any = NoEndpoint()
    listed = models_from_json('[{"id": "m", "multimodal": true, "quirks": {"images": false}}]')
    assert [facts.multimodal for facts in await ModelCatalogue(endpoint, listed).models()] == [False]


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class NoEndpoint:
    """An endpoint that nobody asks."""

    base_url = "http://127.0.0.1:9/v1"


SIGHTS: dict[str, tuple[Router, bool]] = {
    "no model does": (Router(Route("chat", ("blind",))), False),
    "nobody has said": (Router(Route("chat", ("unknown",))), False),
    "one behind another does": (Router(Route("chat", ("blind", "eyes"))), True),
    "one for tools does": (Router(Route("chat", ("blind",)), agentic=Route("agentic", ("eyes",))), True),
    "nobody has said of one that is for images": (
        Router(Route("chat", ("blind",)), multimodal=Route("multimodal", ("unknown", "blind"))),
        True,
    ),
    "one that is for images does not": (
        Router(Route("chat", ("unknown",)), multimodal=Route("multimodal", ("blind",))),
        False,
    ),
}


@pytest.mark.parametrize(("router", "expected"), SIGHTS.values(), ids=SIGHTS.keys())
async def test_the_routers_name_takes_images_where_a_model_of_its_routes_does(router: Router, expected: bool) -> None:
    endpoint: Any = NoEndpoint()
    listed = (ListedModel("eyes", multimodal=True), ListedModel("blind", multimodal=False), ListedModel("unknown"))
    *_, alias = await ModelCatalogue(endpoint, listed, router=router).models()
    assert (alias.id, alias.multimodal) == ("omni", expected)


TOLD = json_answer({"data": [{"id": "a", "supported_parameters": ["stop"]}, {"id": "b"}]})


@asynccontextmanager
async def open_catalogue(
    *answers: Answer, router: Router | None = None, clock: Callable[[], float] = time.monotonic
) -> AsyncGenerator[tuple[ModelCatalogue, FakeUpstream]]:
    async with open_upstream([], models_script=answers) as upstream, open_endpoint(Options(upstream.url)) as endpoint:
        yield ModelCatalogue(endpoint, router=router, clock=clock), upstream


async def test_what_the_endpoint_tells_holds_for_runs_whoever_asked_for_its_list() -> None:
    async with open_catalogue(TOLD, router=Router(Route("chat", ("a", "b")))) as (catalogue, upstream):
        assert not (await catalogue.choose(run("a"), wants_tools=True)).supports_tools
        assert (await catalogue.choose(run("omni"), wants_tools=True)).id == "b"
        assert len(upstream.requests) == 1
    async with open_catalogue(TOLD, router=Router(Route("chat", ("a", "b")))) as (catalogue, _):
        assert (await catalogue.choose(run("omni"), wants_tools=True)).id == "b"


FAILING = {"an error": failure(500, "boom"), "a page": page("<html>"), "a bad key": failure(401, "who?")}


@pytest.mark.parametrize("answer", FAILING.values(), ids=FAILING.keys())
async def test_a_list_that_fails_costs_runs_one_request_and_nothing_else(answer: Answer) -> None:
    async with open_catalogue(answer, TOLD) as (catalogue, upstream):
        for _ in range(3):
            assert await catalogue.choose(run("a"), wants_tools=True) == ModelFacts("a")
        assert len(upstream.requests) == 1
        # Who cannot do without it asks all the same, and then everybody knows.
        assert (await catalogue.choose(run(), wants_tools=False)).id == "a"
        assert not (await catalogue.choose(run("a"), wants_tools=True)).supports_tools


async def test_a_failing_list_is_asked_for_again_after_a_while() -> None:
    clock = Clock()
    async with open_catalogue(failure(500, "boom"), TOLD, clock=clock) as (catalogue, _):
        assert (await catalogue.choose(run("a"), wants_tools=True)).supports_tools
        clock.now += 59
        assert (await catalogue.choose(run("a"), wants_tools=True)).supports_tools
        clock.now += 2
        assert not (await catalogue.choose(run("a"), wants_tools=True)).supports_tools


async def test_a_list_that_does_not_come_holds_up_the_runs_of_one_moment_and_no_other() -> None:
    async with open_catalogue(Answer([asyncio.Event()]), TOLD) as (catalogue, upstream):
        took: list[float] = []

        async def choose() -> None:
            start = anyio.current_time()
            assert await catalogue.choose(run("a"), wants_tools=True) == ModelFacts("a")
            took.append(anyio.current_time() - start)

        async with anyio.create_task_group() as runs:
            for _ in range(5):
                runs.start_soon(choose)
        await choose()
        assert max(took) < 2.5  # a list may take five seconds
        assert took[-1] < 0.5
        assert len(upstream.requests) == 1


LATER: dict[str, Answer] = {**FAILING, "no models": models(), "no list": failure(404, "gone")}


@pytest.mark.parametrize("answer", LATER.values(), ids=LATER.keys())
async def test_what_was_known_is_not_lost_when_the_list_fails_later(answer: Answer) -> None:
    clock = Clock()
    async with open_catalogue(TOLD, answer, models("c"), clock=clock) as (catalogue, upstream):
        assert len(await catalogue.models()) == 2
        clock.now += 301
        for _ in range(3):
            assert [facts.id for facts in await catalogue.models()] == ["a", "b"]
            assert (await catalogue.choose(run(), wants_tools=False)).id == "a"
            assert not (await catalogue.choose(run("a"), wants_tools=True)).supports_tools
        assert len(upstream.requests) == 2
        clock.now += 301
        assert [facts.id for facts in await catalogue.models()] == ["c"]


async def test_a_failure_is_not_kept_and_a_list_is() -> None:
    async with (
        open_upstream([], models_script=[failure(500, "boom"), models("a")]) as upstream,
        open_endpoint(Options(upstream.url)) as endpoint,
    ):
        catalogue = ModelCatalogue(endpoint)
        assert await catalogue.models() == ()
        for _ in range(3):
            assert [facts.id for facts in await catalogue.models()] == ["a"]
        assert (await catalogue.choose(run(), wants_tools=False)).owned_by == "scripted"
        assert len(upstream.requests) == 2


@pytest.mark.parametrize("answer", [models("a"), failure(500, "boom")], ids=["told", "failed"])
async def test_askers_at_the_same_time_share_one_request(answer: Answer) -> None:
    gate = asyncio.Event()
    held = Answer([gate, *answer.pieces], answer.status, answer.headers, answer.framing)
    async with (
        open_upstream([], models_script=lambda _: held) as upstream,
        open_endpoint(Options(upstream.url)) as endpoint,
    ):
        catalogue = ModelCatalogue(endpoint)
        found: list[int] = []

        async def ask() -> None:
            found.append(len(await catalogue.models()))

        async with anyio.create_task_group() as askers:
            for _ in range(5):
                askers.start_soon(ask)
            await upstream.wait_for(lambda up: len(up.requests) == 1)
            gate.set()
        assert found == [answer.status == 200] * 5
        assert len(upstream.requests) == 1


async def test_when_the_asker_is_cancelled_the_next_one_asks() -> None:
    gate = asyncio.Event()
    held = Answer([gate], headers={"Content-Type": "application/json"})
    async with (
        open_upstream([], models_script=[held, models("a")]) as upstream,
        open_endpoint(Options(upstream.url)) as endpoint,
    ):
        catalogue = ModelCatalogue(endpoint)
        first = anyio.CancelScope()
        found: list[str] = []

        async def ask_first() -> None:
            with first:
                await catalogue.models()

        async def ask_second() -> None:
            found.extend(facts.id for facts in await catalogue.models())

        async with anyio.create_task_group() as askers:
            askers.start_soon(ask_first)
            await upstream.wait_for(lambda up: len(up.requests) == 1)
            askers.start_soon(ask_second)
            await anyio.wait_all_tasks_blocked()
            first.cancel()
        assert found == ["a"]


LISTS: list[tuple[Any, list[ModelFacts]]] = [
    (
        {"data": [{"id": "a", "created": 5, "owned_by": "me", "context_length": 4096}]},
        [ModelFacts("a", created=5, owned_by="me", context_length=4096)],
    ),
    ([{"id": "a", "max_model_len": 8}], [ModelFacts("a", context_length=8)]),
    ([{"id": "a", "max_model_len": True}], [ModelFacts("a")]),
    ({"data": [{"id": "a", "created": "x", "owned_by": None}, {"id": 7}, {}, None, "b"]}, [ModelFacts("a")]),
    ({"data": None}, []),
    (None, []),
]


@pytest.mark.parametrize(("told", "expected"), LISTS)
def test_the_endpoints_list_is_read_leniently(told: Any, expected: list[ModelFacts]) -> None:
    assert list(facts_from_list(told).values()) == expected


async def test_a_models_own_parameters_are_below_the_callers() -> None:
    async with open_upstream([stream(text("Hi"), end())]) as upstream, open_endpoint(Options(upstream.url)) as endpoint:
        catalogue = ModelCatalogue(endpoint, LISTED)
        spec = RunSpec(messages=(), parameters={"temperature": 0.7})
        model = catalogue.open(await catalogue.choose(spec, wants_tools=False), spec)
        async with model.stream(Ask([{"role": "user", "content": "Hi"}]), lambda _: None) as batches:
            assert [batch async for batch in batches]
        assert upstream.asks[0].json["temperature"] == 0.7
        assert upstream.asks[0].json["top_p"] == 1
        assert upstream.asks[0].json["model"] == "small"
