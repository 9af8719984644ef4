"""Stories of the router: which model a run gets that names the alias, and who answers when that one does not."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.setting_types import SettingsError
from app.settings import Settings
from tests.fakes.raw_mcp import open_raw_mcp, tool_entry
from tests.fakes.service import Run, Service, open_service, operator_server
from tests.fakes.upstream import (
    CUT,
    Answer,
    FakeUpstream,
    Request,
    dropped,
    end,
    failure,
    json_answer,
    open_upstream,
    stream,
    text,
)
from tests.stories.requirements import proves

pytestmark = pytest.mark.anyio

ROUTES = [
    {"name": "chat", "description": "small talk", "primary_model": "small", "fallback_models": ["medium"]},
    {"name": "code", "primary_model": "coder"},
]
SETTINGS: dict[str, Any] = {
    "router_fallback_model": "spare",
    "router_enable_tools": True,
    "router_tools_model": "worker",
    "router_enable_multimodal": True,
    "router_multimodal_model": "eyes",
}
PICTURE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]
HI = stream(text("Hi"), end())


@asynccontextmanager
async def open_router(
    path: Path, broken: dict[str, Answer] | None = None, *, tools: Sequence[Any] = (), **settings: Any
) -> AsyncGenerator[tuple[Service, FakeUpstream]]:
    """Serve a router over an endpoint on which some models are broken; with tools where there are some."""
    routes = path / "routes.json"
    routes.write_text(json.dumps(ROUTES))

    def script(request: Request) -> Answer:
        return (broken or {}).get(request.json["model"], HI)

    chosen = {**SETTINGS, "router_routes_path": str(routes), **settings}
    async with open_raw_mcp(tools=tools) as mcp, open_upstream(script) as upstream:
        servers = [operator_server("box", mcp.url)] if tools else []
        async with open_service(upstream, extra_servers=servers, upstream_backoff_ms=1, **chosen) as service:
            yield service, upstream


def asked(upstream: FakeUpstream) -> list[str]:
    return [request.json["model"] for request in upstream.asks]


def who(run: Run) -> list[tuple[str | None, str]]:
    return [(data["route"], data["model"]) for data in run.named("routerMetadata")]


CLOCK = [tool_entry("clock")]


@proves("router")
@pytest.mark.parametrize(
    ("body", "tools", "chosen"),
    [
        ({}, [], ("chat", "small")),
        ({}, CLOCK, ("agentic", "worker")),
        ({"server_names": []}, CLOCK, ("chat", "small")),
        ({"tool_choice": "none"}, CLOCK, ("chat", "small")),
        ({"messages": [{"role": "user", "content": PICTURE}]}, [], ("multimodal", "eyes")),
        ({"messages": [{"role": "user", "content": PICTURE}]}, CLOCK, ("multimodal", "eyes")),
    ],
)
async def test_the_alias_gets_the_model_that_fits_the_run(
    tmp_path: Path, body: dict[str, Any], tools: list[Any], chosen: tuple[str, str]
) -> None:
    async with open_router(tmp_path, tools=tools) as (service, upstream):
        run = await service.run(model="omni", **body)
    assert who(run) == [chosen]
    assert asked(upstream) == [chosen[1]]
    assert run.status("prepared")["model"] == chosen[1]
    assert run.names.index("routerMetadata") < run.names.index("stream")
    assert run.answer["text"] == "Hi"


def listed(*, blunt: Sequence[str] = (), **facts: Any) -> str:
    """Write `MODELS` with all models of the router; the blunt ones have `facts`."""
    names = ("small", "medium", "coder", "worker", "eyes", "spare")
    return json.dumps([{"id": name, **(facts if name in blunt else {})} for name in names])


@proves("router")
async def test_a_route_without_a_model_that_takes_tools_is_an_ordinary_completion(tmp_path: Path) -> None:
    models = listed(blunt=["worker", "spare"], supportsTools=False)
    async with open_router(tmp_path, tools=CLOCK, models=models) as (service, upstream):
        run = await service.run(model="omni")
    assert run.status("prepared") == {
        "type": "status",
        "status": "prepared",
        "model": "worker",
        "tools": "not_applicable",
        "reason": "route_without_tools",
    }
    assert "tools" not in upstream.asks[0].json
    assert run.answer["text"] == "Hi"


@proves("router")
@pytest.mark.parametrize("facts", [{"supportsTools": False}, {"quirks": {"tools": False}}])
async def test_a_model_that_takes_no_tools_is_passed_over_where_another_does(
    tmp_path: Path, facts: dict[str, Any]
) -> None:
    models = listed(blunt=["worker"], **facts)
    async with open_router(tmp_path, tools=CLOCK, models=models) as (service, upstream):
        run = await service.run(model="omni")
    assert who(run) == [("agentic", "spare")]
    assert "tools" in upstream.asks[0].json


@proves("router-fallback")
@pytest.mark.parametrize(
    "trouble",
    [
        failure(404, "no such model"),
        failure(503, "overloaded"),
        failure(429, "busy", {"Retry-After": "30"}),
        dropped(),
        Answer(),
        stream(b": PROCESSING\n\n", done=False),
        stream(CUT),
        stream({"error": {"message": "overloaded", "code": 503}}),
        json_answer({"error": {"message": "busy", "code": 429}}),
    ],
)
async def test_a_model_that_does_not_begin_to_answer_gives_way_to_the_next_for_the_rest_of_the_run(
    tmp_path: Path, trouble: Answer
) -> None:
    async with open_router(tmp_path, {"small": trouble}) as (service, upstream):
        run = await service.run(model="omni")
        snapshot = (await service.client.get(f"/v1/runs/{run.response.headers['x-run-id']}")).json()
    assert list(dict.fromkeys(asked(upstream))) == ["small", "medium"]
    assert who(run) == [("chat", "medium")]
    (notice,) = run.named("notice")
    assert (notice["code"], notice["model"]) == ("model_fallback", "small")
    assert run.answer["text"] == "Hi"
    assert run.status("prepared")["model"] == "small"
    assert snapshot["model"] == "medium"


@proves("router-fallback")
async def test_when_no_model_answers_the_last_ones_error_ends_the_run(tmp_path: Path) -> None:
    gone = failure(404, "gone")
    async with open_router(tmp_path, {"small": gone, "medium": gone, "spare": failure(403, "no")}) as (
        service,
        upstream,
    ):
        run = await service.run(model="omni")
    assert asked(upstream) == ["small", "medium", "spare"]
    assert (run.last["status"], run.last["code"]) == ("error", "upstream_auth")
    assert run.named("routerMetadata") == []


@proves("router-fallback")
async def test_what_was_begun_is_not_begun_again_with_another_model(tmp_path: Path) -> None:
    async with open_router(tmp_path, {"small": stream(text("So "), done=False)}) as (service, upstream):
        run = await service.run(model="omni")
    assert asked(upstream) == ["small"]
    assert (run.text, run.last["code"]) == ("So ", "upstream_incomplete")


@proves("router")
async def test_the_provider_behind_a_model_is_told_whoever_chose_the_model(tmp_path: Path) -> None:
    told = stream(text("Hi"), end(), headers={"X-Inference-Provider": "fast<b>-host"})
    async with open_router(tmp_path, {"small": told, "mine": told}) as (service, _):
        routed, named = await service.run(model="omni"), await service.run(model="mine")
    assert routed.named("routerMetadata") == [
        {"type": "routerMetadata", "route": "chat", "model": "small", "provider": "fast -host"}
    ]
    assert named.named("routerMetadata") == [
        {"type": "routerMetadata", "route": None, "model": "mine", "provider": "fast -host"}
    ]


@proves("router")
async def test_the_alias_is_listed_can_be_the_default_and_other_models_are_reached_as_before(tmp_path: Path) -> None:
    async with open_router(tmp_path, default_model="omni") as (service, upstream):
        run = await service.run()
        other = await service.run(model="coder")
        listed = (await service.client.get("/v1/models")).json()["data"]
    assert asked(upstream) == ["small", "coder"]
    assert (who(run), who(other)) == ([("chat", "small")], [])
    alias = listed[-1]
    assert (alias["id"], alias["supportsTools"], alias["multimodal"]) == ("omni", True, True)


TOOLS: dict[str, Any] = {"router_enable_tools": True, "router_tools_model": "w"}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"router_routes_path": "/nowhere/routes.json"}, "LLM_ROUTER_ROUTES_PATH: the file cannot be read"),
    ({"router_enable_tools": True, "router_fallback_model": "m"}, "LLM_ROUTER_ENABLE_TOOLS: needs"),
    ({"router_enable_multimodal": True, "router_fallback_model": "m"}, "LLM_ROUTER_ENABLE_MULTIMODAL: needs"),
    ({"router_fallback_model": "omni"}, "LLM_ROUTER_FALLBACK_MODEL: 'omni' is the router itself"),
    ({"router_default_route": "chat", "router_fallback_model": "m"}, "LLM_ROUTER_DEFAULT_ROUTE: the routes file"),
    (TOOLS, "LLM_ROUTER_FALLBACK_MODEL: must .* TOOLFERRY_DEFAULT_MODEL"),
    ({"router_tools_model": "w"}, "LLM_ROUTER_TOOLS_MODEL: is used only with LLM_ROUTER_ENABLE_TOOLS=true"),
    ({"router_multimodal_model": "w"}, "LLM_ROUTER_MULTIMODAL_MODEL: is used only with LLM_ROUTER_ENABLE_MULTIMODAL"),
    (
        {"PUBLIC_LLM_ROUTER_ALIAS_ID": " ", "router_fallback_model": "m"},
        "PUBLIC_LLM_ROUTER_ALIAS_ID: must not be",
    ),
    ({"router_fallback_model": "m", "models": '[{"id": "m"}, {"id": "omni"}]'}, "MODELS: 'omni' is the router's name"),
    ({**TOOLS, "models": '[{"id": "omni"}, {"id": "w"}]'}, "MODELS: 'omni' is the router's name"),
    ({"router_fallback_model": "x", "models": '[{"id": "m"}]'}, "LLM_ROUTER_FALLBACK_MODEL: MODELS does not list 'x'"),
    ({**TOOLS, "models": '[{"id": "m"}]'}, "LLM_ROUTER_TOOLS_MODEL: MODELS does not list 'w'"),
    ({**TOOLS, "models": '[{"id": "w"}]', "default_model": "x"}, "TOOLFERRY_DEFAULT_MODEL: MODELS does not list it"),
]


@proves("router")
@pytest.mark.parametrize(("settings", "message"), WRONG)
def test_settings_of_the_router_that_do_not_fit_stop_the_start_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings.for_demo(**settings).rooms()


@proves("router")
def test_without_routes_and_fallback_the_services_default_model_is_the_default_route() -> None:
    for settings in ({"default_model": "d"}, {"models": '[{"id": "d"}, {"id": "w"}]'}):
        router = Settings.for_demo(**TOOLS, **settings).rooms().router
        assert router is not None
        assert router.default.models == ("d",)


@proves("router")
def test_a_model_of_the_routes_file_that_is_not_offered_stops_the_start_where_it_could_be_chosen(
    tmp_path: Path,
) -> None:
    routes = tmp_path / "routes.json"
    routes.write_text(json.dumps(ROUTES))
    small = Settings.for_demo(router_routes_path=str(routes), models='[{"id": "small"}]')
    with pytest.raises(SettingsError, match="LLM_ROUTER_ROUTES_PATH: MODELS does not list 'medium'"):
        small.rooms()
    # The route `code` is never taken, so that its model need not be there.
    both = Settings.for_demo(router_routes_path=str(routes), models='[{"id": "small"}, {"id": "medium"}]')
    assert both.rooms().router is not None


@proves("router")
def test_a_router_that_is_off_leaves_its_name_to_a_model() -> None:
    rooms = Settings.for_demo(models='[{"id": "omni"}]').rooms()
    assert (rooms.router, [model.id for model in rooms.models]) == (None, ["omni"])
