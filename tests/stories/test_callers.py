"""Stories of who may call: keys, end users, Host and Origin, and what callers see of each other, which is nothing."""

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import anyio
import httpx
import pytest

from app.api.keys import entry_from_key, new_key
from tests.fakes.mcp_servers import open_mcp_server, wait_until
from tests.fakes.raw_mcp import RawRequest, json_reply, open_raw_mcp, result_of, text_result, tool_entry
from tests.fakes.service import USER, open_service, operator_server
from tests.fakes.upstream import Answer, Request, call, end, failure, open_upstream, stream, text
from tests.stories.requirements import proves

pytestmark = pytest.mark.anyio

ALICE, BOB, FRONT = new_key(), new_key(), new_key()
KEYS = ",".join(
    [entry_from_key("alice", ALICE), entry_from_key("bob", BOB), entry_from_key("front", FRONT, is_trusted=True)]
)
KEYED: dict[str, Any] = {"auth": "required", "api_keys": KEYS}
JSON = {"content-type": "application/json"}
_DONE = stream(text("Done."), end())


def bearer(key: str, user: str | None = None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", **({} if user is None else {"X-End-User": user})}


def calling(name: str) -> Any:
    def script(request: Request) -> Answer:
        done = any(message["role"] == "tool" for message in request.json["messages"])
        return _DONE if done else stream(call(0, "c0", name, "{}"), end("tool_calls"))

    return script


def without_ids(response: httpx.Response) -> tuple[int, bytes, list[str]]:
    """What a caller can tell answers apart by, but for the ids of request and run."""
    names = sorted(name for name in response.headers if name not in ("date", "x-request-id", "x-run-id"))
    return response.status_code, response.content, names


@proves("keys")
async def test_every_route_but_the_probes_wants_a_key() -> None:
    async with open_service(**KEYED) as service:
        document: dict[str, Any] = (await service.client.get("/openapi.json", headers=bearer(ALICE))).json()
        asked: dict[str, int] = {}
        more: dict[str, list[str]] = {"/openapi.json": ["get"], "/no/such/route": ["get"]}
        routes: dict[str, list[str]] = {path: list(route) for path, route in document["paths"].items()} | more
        for path, methods in routes.items():
            for method in methods:
                filled = re.sub(r"\{[^}]*\}", "run_" + "0" * 32, path)
                response = await service.client.request(method.upper(), filled, headers=JSON)
                asked[f"{method} {path}"] = response.status_code
                if response.status_code == 401:
                    assert response.headers["www-authenticate"] == "Bearer"
                    assert response.json()["error"]["code"] == "unauthorized"
                assert response.headers["x-request-id"]
        opened = {name for name, status in asked.items() if status == 200}
        assert opened == {"get /healthz", "get /readyz"}
        assert set(asked.values()) <= {200, 401, 429}, "wrong keys are slowed down after a while"


WRONG: list[list[tuple[str, str]]] = [
    [],
    [("Authorization", "")],
    [("Authorization", "Bearer")],
    [("Authorization", ALICE)],
    [("Authorization", f"Basic {ALICE}")],
    [("Authorization", f"Bearer {ALICE[:-1]}")],
    [("Authorization", f"Bearer {ALICE}x")],
    [("Authorization", f"Bearer {ALICE} {ALICE}")],
    [("Authorization", f"Bearer {ALICE}"), ("Authorization", f"Bearer {ALICE}")],
    [("Authorization", f"Bearer {KEYS.split(',')[0]}")],
    [("X-Api-Key", ALICE)],
    [("Cookie", f"Authorization=Bearer {ALICE}")],
]


@proves("keys")
@pytest.mark.parametrize("headers", WRONG, ids=range(len(WRONG)))
async def test_what_is_no_key_is_a_401_without_detail(headers: list[tuple[str, str]]) -> None:
    async with open_service(**KEYED) as service:
        response = await service.client.get("/v1/models", headers=headers)
        query = await service.client.get(f"/v1/models?token={ALICE}", headers=headers)
    assert response.status_code == query.status_code == 401
    assert response.json()["error"]["message"] == "A valid key is needed: Authorization: Bearer …"


@proves("keys")
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer "])
async def test_a_key_opens_whatever_the_case_of_its_scheme(scheme: str) -> None:
    async with open_upstream(calling("x")) as upstream, open_service(upstream, **KEYED) as service:
        response = await service.client.get("/v1/servers", headers={"Authorization": f"{scheme} {ALICE}"})
    assert response.status_code == 200


@proves("keys")
async def test_guessing_is_slowed_down_and_who_has_a_key_does_not_notice() -> None:
    async with open_service(**KEYED) as service:
        got = [(await service.client.get("/v1/servers", headers=bearer(new_key()))) for _ in range(12)]
        good = await service.client.get("/v1/servers", headers=bearer(ALICE))
    assert [response.status_code for response in got] == [401] * 10 + [429] * 2
    assert int(got[-1].headers["retry-after"]) > 0
    assert good.status_code == 200


@proves("end-users")
@pytest.mark.parametrize("key", [ALICE, BOB], ids=["alice", "bob"])
async def test_only_a_trusted_key_names_end_users(key: str) -> None:
    async with open_service(**KEYED) as service:
        refused = await service.client.get("/v1/servers", headers=bearer(key, "ann"))
        taken = await service.client.get("/v1/servers", headers=bearer(FRONT, "ann"))
    assert (refused.status_code, refused.json()["error"]["param"]) == (403, "X-End-User")
    assert taken.status_code == 200


@proves("end-users")
async def test_nobody_is_named_where_no_keys_are_asked_for() -> None:
    async with open_service() as service:
        assert (await service.client.get("/v1/servers", headers={"X-End-User": "ann"})).status_code == 403


@proves("end-users")
@pytest.mark.parametrize("name", ["", "x" * 257, "a\tb", b"\xc3\xa4"])
async def test_a_name_that_is_none_is_a_400(name: str | bytes) -> None:
    value = name if isinstance(name, bytes) else name.encode()
    headers = [(b"authorization", f"Bearer {FRONT}".encode()), (b"x-end-user", value)]
    async with open_service(**KEYED) as service:
        response = await service.client.get("/v1/servers", headers=headers)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "X-End-User")


@proves("tenants")
@pytest.mark.parametrize(
    "stranger",
    [bearer(BOB), bearer(FRONT), bearer(FRONT, "bob"), bearer(FRONT, "Ann"), bearer(FRONT, "ann2")],
    ids=["key", "front", "user", "case", "longer"],
)
async def test_a_run_of_somebody_else_is_the_same_404_as_an_unknown_one(stranger: dict[str, str]) -> None:
    owner = bearer(FRONT, "ann")
    async with (
        open_upstream([stream(text("a"), asyncio.Event())]) as upstream,
        open_service(upstream, **KEYED) as service,
    ):
        async with service.streaming(headers=owner) as (response, _):
            run_id = response.headers["x-run-id"]
            for method, path in (
                ("GET", ""),
                ("GET", "/events"),
                ("GET", "/events?after=1"),
                ("POST", "/cancel"),
                ("POST", f"/inputs/{uuid4()}"),
            ):
                body: dict[str, Any] = {"json": {"action": "accept"}} if path.startswith("/inputs") else {}
                foreign, unknown = [
                    await service.client.request(method, f"/v1/runs/{id_}{path}", headers=stranger, **body)
                    for id_ in (run_id, "run_" + uuid4().hex)
                ]
                assert without_ids(foreign) == without_ids(unknown)
                assert foreign.status_code == 404
            own = await service.client.get(f"/v1/runs/{run_id}", headers=owner)
            assert own.json()["state"] == "running", "nobody has stopped it"


@proves("tenants")
async def test_the_same_idempotency_key_of_two_callers_is_two_runs() -> None:
    async with open_upstream(lambda _: _DONE) as upstream, open_service(upstream, **KEYED) as service:
        ids: list[str] = []
        for who in (bearer(ALICE), bearer(BOB), bearer(FRONT, "a"), bearer(FRONT, "b"), bearer(FRONT), bearer(ALICE)):
            run = await service.run(headers={**who, "Idempotency-Key": "one"})
            ids.append(run.response.headers["x-run-id"])
    assert len(set(ids)) == 5
    assert ids[0] == ids[-1]


@proves("read-token")
async def test_a_read_token_opens_the_events_of_its_run_and_nothing_else() -> None:
    async with open_upstream(lambda _: _DONE) as upstream, open_service(upstream, **KEYED) as service:
        first, second = [await service.run(headers=bearer(ALICE)) for _ in range(2)]
        token = first.status("started")["readToken"]
        one, two = [run.response.headers["x-run-id"] for run in (first, second)]
        assert token != second.status("started")["readToken"]
        got = await service.client.get(f"/v1/runs/{one}/events?token={token}")
        assert got.status_code == 200
        assert f'"runId":"{one}"' in got.text
        after = await service.client.get(f"/v1/runs/{one}/events?token={token}&after=2")
        assert after.text.startswith("retry: 1000\nid: 3\n")
        for path in (
            f"/v1/runs/{one}?token={token}",
            f"/v1/runs/{two}/events?token={token}",
            f"/v1/runs/{one}/events?token={token}x",
            f"/v1/runs/{one}/events?token=",
            f"/v1/runs/{one}/events?token=%ff%00",
            f"/v1/runs/{one}/events?token={token}&token={token}",
            f"/v1/runs/{one}/events",
            f"/v1/runs/run_{uuid4().hex}/events?token={token}",
            f"/v1/models?token={token}",
        ):
            assert (await service.client.get(path)).status_code in (401, 429), path
        assert (await service.client.post(f"/v1/runs/{one}/cancel?token={token}")).status_code in (401, 429)


@proves("read-token")
async def test_without_keys_there_is_no_read_token() -> None:
    async with open_upstream(lambda _: _DONE) as upstream, open_service(upstream) as service:
        assert "readToken" not in (await service.run()).status("started")


@proves("too-many")
async def test_runs_are_counted_for_each_key_and_each_end_user() -> None:
    async with (
        open_upstream(lambda _: stream(text("a"), asyncio.Event())) as upstream,
        open_service(upstream, max_runs_per_user=1, max_runs_per_key=2, **KEYED) as service,
    ):
        statuses: list[tuple[str, int]] = []

        async def hold(who: dict[str, str]) -> None:
            async with service.streaming(headers=who):
                await anyio.sleep_forever()

        async with anyio.create_task_group() as tasks:
            for who in (bearer(FRONT, "ann"), bearer(FRONT, "ben")):
                tasks.start_soon(hold, who)
            await wait_until(lambda: service.app.state.doors.journal.running == 2)
            for label, who in (("ann again", bearer(FRONT, "ann")), ("a third", bearer(FRONT, "cid"))):
                response = await service.client.post("/v1/runs", json={"messages": USER}, headers=who)
                assert response.headers["retry-after"]
                assert response.json()["error"]["code"] == "too_many_runs"
                statuses.append((label, response.status_code))
            tasks.start_soon(hold, bearer(ALICE))
            await wait_until(lambda: service.app.state.doors.journal.running == 3)
            tasks.cancel_scope.cancel()
        await wait_until(lambda: service.app.state.doors.journal.running == 0)
    assert statuses == [("ann again", 429), ("a third", 429)]


@proves("tenants")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_callers_share_no_connection_and_no_list(era: Any) -> None:
    """Each caller gets what the server lists on the connection that was made for it."""
    made: list[str] = []

    def listing(request: RawRequest) -> bytes:
        made.append("list")
        return json_reply(
            result_of(request, {"tools": [tool_entry(f"tool_{len(made)}")], "ttlMs": 60_000, "cacheScope": "public"})
        )

    async with open_raw_mcp({"tools/list": listing}, era=era) as raw:
        async with (
            open_upstream(lambda _: _DONE) as upstream,
            open_service(upstream, extra_servers=[operator_server("box", raw.url)], **KEYED) as service,
        ):
            seen: dict[str, list[list[str]]] = {}
            callers = {
                "alice": bearer(ALICE),
                "bob": bearer(BOB),
                "ann": bearer(FRONT, "ann"),
                "ben": bearer(FRONT, "ben"),
            }
            for _ in range(2):
                for name, who in callers.items():
                    run = await service.run(headers=who)
                    seen.setdefault(name, []).append(run.named("server")[0]["tools"])
            listed = [tools[0][0] for tools in seen.values()]
            assert len(set(listed)) == 4
            assert all(first == second for first, second in seen.values()), "its own list was kept for each"


@proves("tenants")
async def test_sessions_of_one_key_are_counted_apart() -> None:
    async with (
        open_mcp_server("legacy") as one,
        open_mcp_server("legacy") as two,
        open_upstream(calling("count")) as upstream,
        open_service(
            upstream,
            extra_servers=[operator_server("one", one.url), operator_server("two", two.url)],
            max_sessions_per_key=1,
            **KEYED,
        ) as service,
    ):
        run = await service.run(headers=bearer(ALICE))
        states = {data["name"]: data["state"] for data in run.named("server")}
        other = await service.run(headers=bearer(BOB), server_names=["one"])
    assert sorted(states.values()) == ["ready", "unavailable"]
    assert [data["state"] for data in other.named("server")] == ["ready"], "another key has sessions of its own"


@proves("names-caller")
async def test_an_operators_server_is_told_who_asks_where_its_entry_says_so() -> None:
    headers = {
        "X-User": "{user}",
        "X-About": "u={user};c={conversation_id}",
        "X-Request": "{request_id}",
        "X-Braces": "{other} {user",
        "Authorization": "Bearer fixed",
    }
    entry = {"name": "box", "headers": headers}
    async with (
        open_raw_mcp(era="modern") as raw,
        open_raw_mcp(era="modern") as silent,
        open_upstream(lambda _: _DONE) as upstream,
        open_service(
            upstream,
            mcp_servers=json.dumps(
                [{**entry, "url": raw.url, "names_caller": True}, {**entry, "name": "plain", "url": silent.url}]
            ),
            **KEYED,
        ) as service,
    ):
        who = {**bearer(FRONT, "ann; admin=1"), "X-Request-Id": "r-1"}
        await service.run(headers=who, metadata={"conversation_id": "ü\u0000\n1"})
        told = raw.requests[-1].headers
        await service.run(headers=bearer(ALICE))
        untold = raw.requests[-1].headers
    assert told["x-user"] == "ann%3B%20admin%3D1"
    assert told["x-about"] == "u=ann%3B%20admin%3D1;c=%C3%BC%00%0A1"
    assert told["x-request"] == "r-1"
    assert told["x-braces"] == untold["x-braces"] == "{other} {user"
    assert {"x-user", "x-about"}.isdisjoint(untold), "nobody is not taken for somebody"
    assert silent.requests[-1].headers["x-user"] == "{user}"


@proves("names-caller")
async def test_what_a_server_is_told_of_its_caller_it_may_say_back() -> None:
    user, conversation = "66f1c0ffee00bada55e5f00d", str(uuid4())
    headers = {"X-User-Token": "{user}", "X-Session": "{conversation_id}", "Authorization": "Bearer operator-key-123"}
    said = f"{user} {conversation} operator-key-123"
    async with (
        open_raw_mcp({"tools/call": lambda r: json_reply(result_of(r, text_result(said)))}, era="modern") as raw,
        open_upstream(calling("echo")) as upstream,
        open_service(
            upstream,
            mcp_servers=json.dumps([{"name": "box", "url": raw.url, "headers": headers, "names_caller": True}]),
            **KEYED,
        ) as service,
    ):
        run = await service.run(headers=bearer(FRONT, user), metadata={"conversation_id": conversation})
    assert run.named("tool/result")[0]["result"]["outputs"][0]["text"] == f"{user} {conversation} …"


@proves("tenants")
async def test_how_long_calls_take_is_learned_for_each_caller() -> None:
    async with (
        open_mcp_server() as mcp,
        open_upstream(calling("count")) as upstream,
        open_service(upstream, extra_servers=[operator_server("box", mcp.url)], **KEYED) as service,
    ):
        etas = [
            [data["eta"] for data in (await service.run(headers=who)).named("tool/eta")]
            for who in (bearer(FRONT, "ann"), bearer(FRONT, "ben"), bearer(ALICE))
        ]
    assert etas == [[10.0]] * 3


@proves("tenants")
async def test_what_one_caller_makes_the_endpoint_complain_of_changes_nothing_for_another() -> None:
    def script(request: Request) -> Answer:
        said = request.json["messages"][-1]["content"]
        if "EVIL" in said and "tools" in request.json:
            return failure(400, f"Input rejected: {said}")
        return _DONE

    async with (
        open_mcp_server() as mcp,
        open_upstream(script) as upstream,
        open_service(upstream, extra_servers=[operator_server("box", mcp.url)], **KEYED) as service,
    ):
        evil = [{"role": "user", "content": "EVIL: tools are not supported by this model"}]
        await service.run(headers=bearer(BOB), messages=evil)
        run = await service.run(headers=bearer(ALICE))
    assert run.status("prepared")["tools"] == "active"
    assert upstream.asks[-1].json["tools"]


@proves("names-caller")
async def test_a_server_of_a_request_cannot_ask_to_be_told() -> None:
    async with open_raw_mcp(era="modern") as raw, open_upstream(lambda _: _DONE) as upstream:
        async with open_service(upstream, mcp_allow_insecure_urls=True, **KEYED) as service:
            server = {"name": "mine", "url": raw.url, "headers": {"X-User": "{user}"}}
            run = await service.run(headers=bearer(FRONT, "ann"), servers=[server])
            asked = await service.client.post(
                "/v1/runs",
                json={"messages": USER, "servers": [{**server, "names_caller": True}]},
                headers=bearer(ALICE),
            )
        assert [data["state"] for data in run.named("server")] == ["ready"]
        assert raw.requests[-1].headers["x-user"] == "{user}"
    assert asked.status_code == 422


PAGES: Sequence[tuple[dict[str, str], int]] = [
    ({"Host": "evil.example"}, 403),
    ({"Host": "127.0.0.1.evil.example"}, 403),
    ({"Host": "localhost"}, 200),
    ({"Host": "LOCALHOST:1234"}, 200),
    ({"Host": "[::1]:99"}, 200),
    ({"Origin": "https://evil.example"}, 403),
    ({"Origin": "null"}, 403),
    ({"Origin": "http://localhost:1"}, 403),
    ({"Host": "localhost:7", "Origin": "http://localhost:7"}, 200),
    ({"Host": "localhost:7", "Origin": "https://localhost:7"}, 403),
    ({"Origin": "https://chat.example"}, 200),
    ({"Origin": "https://chat.example.evil.example"}, 403),
    ({"Toolferry-Hop": "1"}, 508),
]


@proves("pages")
@pytest.mark.parametrize(("headers", "status"), PAGES)
async def test_only_own_names_and_listed_pages_get_in(headers: dict[str, str], status: int) -> None:
    async with open_service(cors_origins="https://chat.example", **KEYED) as service:
        response = await service.client.get("/v1/servers", headers={**bearer(ALICE), **headers})
        assert response.status_code == status
        assert response.headers["x-request-id"]
        if status != 200:
            assert response.json()["error"]["code"] == "forbidden"
        probe = await service.client.get("/healthz", headers=headers)
        assert probe.status_code == 200, "probes come by address"


@proves("pages")
async def test_a_listed_page_can_do_all_and_another_reads_nothing() -> None:
    page = {"Origin": "https://chat.example"}
    wish = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,idempotency-key,last-event-id,x-end-user",
    }
    async with open_upstream(lambda _: _DONE) as upstream:
        async with open_service(upstream, cors_origins="https://chat.example", **KEYED) as service:
            may = await service.client.options("/v1/runs", headers={**page, **wish})
            assert may.status_code == 200
            assert may.headers["access-control-allow-origin"] == "https://chat.example"
            run = await service.run(headers={**page, **bearer(ALICE)})
            assert run.response.headers["access-control-allow-origin"] == "https://chat.example"
            assert "x-run-id" in run.response.headers["access-control-expose-headers"].lower()
            assert "access-control-allow-credentials" not in run.response.headers
            refused = await service.client.get("/v1/models", headers=page)
            assert refused.status_code == 401
            assert refused.headers["access-control-allow-origin"] == "https://chat.example", "a page reads why"
            other = await service.client.options("/v1/runs", headers={"Origin": "https://evil.example", **wish})
            assert other.status_code == 403
            assert "access-control-allow-origin" not in other.headers


@proves("pages")
@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonp", "json"])
async def test_a_body_that_any_page_could_send_unasked_is_a_415(kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    async with open_service() as service:
        response = await service.client.post("/v1/runs", content=json.dumps({"messages": USER}), headers=headers)
    assert (response.status_code, response.json()["error"]["param"]) == (415, "Content-Type")


@proves("pages")
@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON", "application/vnd.api+json"])
async def test_json_is_json_however_it_is_written(kind: str) -> None:
    async with open_upstream(lambda _: _DONE) as upstream, open_service(upstream) as service:
        content = json.dumps({"messages": USER, "stream": False})
        response = await service.client.post("/v1/runs", content=content, headers={"content-type": kind})
    assert response.status_code == 200


@proves("bad-input")
async def test_a_body_that_does_not_come_is_a_408() -> None:
    async with open_service(body_read_ms=100) as service:
        head = (
            b"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
        )
        async with await anyio.connect_tcp("127.0.0.1", httpx.URL(service.url).port or 0) as stream_:
            await stream_.send(head + b'{"messages": ')
            answer = b"".join([part async for part in stream_])
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"invalid_request"' in answer


@proves("tenants")
async def test_a_question_is_answered_by_its_own_caller_only() -> None:
    def go(request: RawRequest) -> bytes:
        return json_reply(result_of(request, text_result("done")))

    async with (
        open_raw_mcp({"tools/call": go}, era="modern") as raw,
        open_upstream(calling("echo")) as upstream,
        open_service(upstream, extra_servers=[operator_server("box", raw.url)], **KEYED) as service,
    ):
        first = await service.client.post(
            "/v1/runs", json={"messages": USER, "stream": False, "approval": "always"}, headers=bearer(FRONT, "ann")
        )
        asked = first.json()
        (question,) = asked["inputs"]
        path = f"/v1/runs/{asked['id']}/inputs/{question['inputId']}"
        foreign = [
            (await service.client.post(path, json={"action": "accept"}, headers=who)).status_code
            for who in (bearer(ALICE), bearer(FRONT), bearer(FRONT, "ben"))
        ]
        own = await service.client.post(path, json={"action": "accept"}, headers=bearer(FRONT, "ann"))
    assert foreign == [404] * 3
    assert own.status_code == 204
