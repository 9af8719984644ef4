"""Which model a run gets that asks for the router."""

import dataclasses
import json
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.ports import ModelFacts
from app.upstream.router import Route, Router, images_in, router_from, routes_from_json

FILE = routes_from_json(
    json.dumps(
        [
            {"name": "chat", "description": "Small talk", "primary_model": "talker", "fallback_models": ["second"]},
            {"name": "code", "primary_model": "coder"},
            {"name": "agentic", "primary_model": "worker", "fallback_models": ["second"]},
            {"name": "multimodal", "primary_model": "viewer", "fallback_models": ["blind", "unknown"]},
        ]
    )
)
MODELS = {
    facts.id: facts
    for facts in (
        ModelFacts("talker", supports_tools=False, multimodal=False),
        ModelFacts("second", multimodal=False),
        ModelFacts("coder", supports_tools=False),
        ModelFacts("worker", multimodal=False),
        ModelFacts("planner", context_length=4096),
        ModelFacts("eyes", supports_tools=False, multimodal=True),
        ModelFacts("viewer", multimodal=True),
        ModelFacts("blind", multimodal=False),
        ModelFacts("last", supports_tools=False, multimodal=False),
    )
}


def facts_of(model: str) -> ModelFacts:
    return MODELS.get(model) or ModelFacts(model)


def router(**settings: Any) -> Router:
    made = router_from(**settings)
    assert made is not None
    return made


class Run(NamedTuple):
    has_images: bool = False
    wants_tools: bool = False
    force_tools: bool = False


PLAIN, TOOLS, IMAGES, BOTH = Run(), Run(wants_tools=True), Run(has_images=True), Run(True, True)
LAST = {"fallback_model": "last"}
ENABLED = {"enable_tools": True, "enable_multimodal": True}
NAMED = {"tools_model": "planner", "multimodal_model": "eyes"}
FULL = {"routes": FILE, **LAST, **ENABLED, **NAMED}

CHOICES: dict[str, tuple[dict[str, Any], Run, str, list[str]]] = {
    "the file's first route is the default": (FULL, PLAIN, "chat", ["talker", "second", "last"]),
    "the default route is the one named": ({**FULL, "default_route": "code"}, PLAIN, "code", ["coder", "last"]),
    "a route without fallback": ({"routes": FILE, "default_route": "code"}, PLAIN, "code", ["coder"]),
    "the fallback alone": (LAST, PLAIN, "default", ["last"]),
    "the fallback with an empty file": ({"routes": {}, **LAST}, PLAIN, "default", ["last"]),
    "the fallback stands only once": (
        {"routes": FILE, "fallback_model": "talker"},
        PLAIN,
        "chat",
        ["talker", "second"],
    ),
    "tools": ({**FULL, "fallback_model": "any"}, TOOLS, "agentic", ["planner", "worker", "second", "any"]),
    "tools without a model of their own": ({**FULL, "tools_model": None}, TOOLS, "agentic", ["worker", "second"]),
    "tools without a route in the file": ({**FULL, "routes": {}}, TOOLS, "agentic", ["planner"]),
    "the tools model is also in the file": (
        {**FULL, "tools_model": "second"},
        TOOLS,
        "agentic",
        ["second", "worker"],
    ),
    "tools that are not enabled": ({**FULL, "enable_tools": False}, TOOLS, "chat", ["second"]),
    "tools where no model has any": (
        {"routes": FILE, "default_route": "code", **LAST},
        TOOLS,
        "code",
        ["coder", "last"],
    ),
    "tools that are forced": (
        {"routes": FILE, **LAST},
        Run(wants_tools=True, force_tools=True),
        "chat",
        ["talker", "second", "last"],
    ),
    "images": (FULL, IMAGES, "multimodal", ["eyes", "viewer", "unknown"]),
    "images without a model of their own": (
        {**FULL, "multimodal_model": None},
        IMAGES,
        "multimodal",
        ["viewer", "unknown"],
    ),
    "images without a route in the file": (
        {"fallback_model": "any", **ENABLED, **NAMED},
        IMAGES,
        "multimodal",
        ["eyes", "any"],
    ),
    "images where no model takes any": (
        {**LAST, "enable_multimodal": True, "multimodal_model": "blind"},
        IMAGES,
        "multimodal",
        ["blind", "last"],
    ),
    "images that are not enabled": (
        {**FULL, "enable_multimodal": False, "default_route": "multimodal"},
        IMAGES,
        "multimodal",
        ["viewer", "blind", "unknown", "last"],
    ),
    "images go before tools": (FULL, BOTH, "multimodal", ["viewer", "unknown"]),
    "tools where images are not enabled": (
        {**FULL, "enable_multimodal": False},
        BOTH,
        "agentic",
        ["planner", "worker", "second"],
    ),
    "images and tools where only a blind model has tools": (
        {"fallback_model": "blind", "enable_multimodal": True, "multimodal_model": "eyes"},
        BOTH,
        "multimodal",
        ["eyes"],
    ),
}


@pytest.mark.parametrize(("settings", "run", "route", "models"), CHOICES.values(), ids=CHOICES.keys())
def test_a_run_gets_the_models_that_fit_it(settings: dict[str, Any], run: Run, route: str, models: list[str]) -> None:
    chosen = router(**settings).route(**run._asdict(), facts=facts_of)
    known = [dataclasses.replace(facts_of(model), route=route) for model in models]
    assert chosen == dataclasses.replace(known[0], fallbacks=tuple(known[1:]))


SOME_MODELS = st.sampled_from([*MODELS, "unknown"])
SOME_FILES = st.dictionaries(
    st.sampled_from(["chat", "agentic", "multimodal"]), st.lists(SOME_MODELS, min_size=1, max_size=4), max_size=3
)


@given(SOME_FILES, SOME_MODELS, SOME_MODELS, st.builds(Run, st.booleans(), st.booleans(), st.booleans()))
def test_every_run_gets_distinct_models_and_tools_where_one_has_them(
    file: dict[str, list[str]], own: str, last: str, run: Run
) -> None:
    entries = [{"name": name, "primary_model": m[0], "fallback_models": m[1:]} for name, m in file.items()]
    made = router(
        routes=routes_from_json(json.dumps(entries)),
        fallback_model=last,
        **ENABLED,
        tools_model=own,
        multimodal_model=own,
    )
    chosen = made.route(**run._asdict(), facts=facts_of)
    candidates = [chosen, *chosen.fallbacks]
    assert len({model.id for model in candidates}) == len(candidates)
    if run.wants_tools and not run.force_tools:
        assert len({model.supports_tools for model in candidates}) == 1
    if run.has_images:
        sighted = [model.multimodal is not False for model in candidates]
        assert all(sighted) or not any(sighted)


OFF: list[dict[str, Any]] = [{}, {"alias": "auto"}, {"tools_model": ""}, {"default_route": "", "fallback_model": ""}]


@pytest.mark.parametrize("settings", OFF)
def test_there_is_no_router_unless_asked_for(settings: dict[str, Any]) -> None:
    assert router_from(**settings) is None


def test_the_alias_is_the_operators() -> None:
    assert router(**LAST).alias == "omni"
    assert router(**LAST, alias="auto").alias == "auto"


MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "a default route that is not in the file": (
        {**FULL, "default_route": "poems"},
        "^LLM_ROUTER_DEFAULT_ROUTE: .*'poems'",
    ),
    "a default route without a file": ({"default_route": "chat"}, "^LLM_ROUTER_DEFAULT_ROUTE: .*'chat'"),
    "an empty file": ({"routes": {}}, "^LLM_ROUTER_FALLBACK_MODEL: must name .*TOOLFERRY_DEFAULT_MODEL"),
    "tools and nothing else": ({"enable_tools": True, **NAMED}, "^LLM_ROUTER_FALLBACK_MODEL: must name"),
    "tools without a model": ({**LAST, "enable_tools": True}, "^LLM_ROUTER_ENABLE_TOOLS: .*'agentic'"),
    "images without a model": ({**LAST, "enable_multimodal": True}, "^LLM_ROUTER_ENABLE_MULTIMODAL: .*'multimodal'"),
    "a model for tools and no switch": (
        {"tools_model": "planner"},
        "^LLM_ROUTER_TOOLS_MODEL: .*LLM_ROUTER_ENABLE_TOOLS=true",
    ),
    "a model for images and no switch": (
        {"multimodal_model": "eyes", "alias": "auto"},
        "^LLM_ROUTER_MULTIMODAL_MODEL: .*LLM_ROUTER_ENABLE_MULTIMODAL=true",
    ),
    "the router as fallback": ({**FULL, "fallback_model": "omni"}, "^LLM_ROUTER_FALLBACK_MODEL: 'omni' is the router"),
    "the router for tools": ({**FULL, "tools_model": "omni"}, "^LLM_ROUTER_TOOLS_MODEL: 'omni'"),
    "the router for images": ({**FULL, "multimodal_model": "omni"}, "^LLM_ROUTER_MULTIMODAL_MODEL: 'omni'"),
    "the router in the file": ({**FULL, "alias": "coder"}, "^LLM_ROUTER_ROUTES_PATH: 'coder'"),
}


@pytest.mark.parametrize(("settings", "message"), MISFITS.values(), ids=MISFITS.keys())
def test_settings_that_do_not_fit_together_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        router_from(**settings)


def test_a_model_that_is_not_enabled_may_be_anything() -> None:
    assert router(**LAST, tools_model="omni", multimodal_model="omni") == Router(Route("default", ("last",)))


def test_the_routes_file_is_read() -> None:
    found = routes_from_json(
        """[{"name": " b ", "description": 7, "primary_model": " m ", "fallback_models": ["n", " m", "n"], "logo": 1},
            {"name": "a", "primary_model": "m", "fallback_models": null}]"""
    )
    assert list(found.items()) == [("b", Route("b", ("m", "n"))), ("a", Route("a", ("m",)))]


UNREADABLE = {
    "": "no JSON",
    "[": "no JSON",
    "[" * 100_000: "no JSON",
    "{}": "a JSON list",
    '["a"]': r"routes\[0\] must be an object",
    '[{"primary_model": "m"}]': r"routes\[0\] must have a `name`",
    '[{"name": " ", "primary_model": "m"}]': r"routes\[0\] must have a `name`",
    '[{"name": "a", "primary_model": "m"}, {"name": "b"}]': r"routes\[1\] \(b\): `primary_model` must",
    '[{"name": "a", "primary_model": 7}]': r"routes\[0\] \(a\): `primary_model` must",
    '[{"name": "a", "primary_model": "m", "fallback_models": "n"}]': r"routes\[0\] \(a\): `fallback_models` must",
    '[{"name": "a", "primary_model": "m", "fallback_models": {}}]': r"routes\[0\] \(a\): `fallback_models` must",
    '[{"name": "a", "primary_model": "m", "fallback_models": ["n", ""]}]': "`fallback_models` must be a list",
    '[{"name": "a", "primary_model": "m"}, {"name": "a", "primary_model": "n"}]': r"routes\[1\]: the `name` 'a' is",
}


@pytest.mark.parametrize(("text", "message"), UNREADABLE.items(), ids=[text[:80] for text in UNREADABLE])
def test_an_unreadable_file_names_the_entry_and_the_field(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        routes_from_json(text)


IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
TEXT = {"type": "text", "text": "image_url"}
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], bool]] = {
    "nothing": ([], False),
    "text": ([{"role": "user", "content": "image_url"}], False),
    "parts of text": ([{"role": "user", "content": [TEXT]}], False),
    "an image": ([{"role": "user", "content": [TEXT, IMAGE]}], True),
    "an image some time ago": (
        [
            {"role": "user", "content": [IMAGE]},
            {"role": "assistant", "content": "A cat."},
            {"role": "user", "content": "Thanks"},
        ],
        True,
    ),
    "an image that is not the user's": (
        [{"role": "assistant", "content": [IMAGE]}, {"role": "user", "content": "?"}],
        False,
    ),
    "odd parts": ([{"role": "user"}, {"role": "user", "content": ["image_url", None, {"image_url": "x"}]}], False),
}


@pytest.mark.parametrize(("messages", "expected"), CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
def test_images_are_seen_anywhere_in_what_the_user_said(messages: list[dict[str, Any]], expected: bool) -> None:
    assert images_in(messages) is expected
