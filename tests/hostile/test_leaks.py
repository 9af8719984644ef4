"""Nothing leaks: a marker in every secret, a service that logs all it can, and everything that can fail.

Looked at is what callers get (answers, headers, events), what the model is asked, and each line of the log: none of
them holds a marker, in any form that libraries write. Each scene says too that it met what it is there for, and that
the secrets were really sent to those they belong to.
"""

import asyncio
import base64
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import anyio
import httpx
import pytest
from httpx_sse import EventSource

from tests.fakes.mcp_servers import wait_until
from tests.fakes.raw_mcp import (
    CUT,
    HANG,
    RawMcp,
    RawRequest,
    Reply,
    error_of,
    http_reply,
    json_reply,
    open_raw_mcp,
    progress_of,
    result_of,
    sse_frame,
    sse_reply,
    text_result,
    tool_entry,
)
from tests.fakes.service import USER, events
from tests.fakes.upstream import Answer, FakeUpstream, Request, call, end, failure, open_upstream, stream, text

pytestmark = pytest.mark.soak

CALLER_KEY = "tf_zqCallerKey-5e1f7a"
MODEL_KEY = "zqModelKey/9c+2b~41"
HF_TOKEN = "zqHubToken-07d3aa"
EXA_KEY = "zqExaKey-6b1c55"
USER_TOKEN = "zqUserToken=5d0e,77"
OPERATOR_BEARER = "zqOperatorBearer-33/f0+1"
OPERATOR_PASSWORD = "zqOperatorPass-8a\"7'\\c"
OPERATOR_QUERY = "zqOperatorQuery-e2e1"
USER_BEARER = "zqUserBearer-c4/b9+0"
USER_COOKIE = "zqUserCookie-1f2e3d"
USER_QUERY = "zqUserQuery-77aa01"
ANSWER = "zqAnswerOfAPerson-4c4c"
INSIDE = "zqInsideOfTheNetwork-90"
"""What a service says that is no MCP server."""

MARKERS = {
    "key of the caller": CALLER_KEY,
    "key of the model": MODEL_KEY,
    "token of the operator": HF_TOKEN,
    "key of a search service": EXA_KEY,
    "token of the caller": USER_TOKEN,
    "bearer of an operator's server": OPERATOR_BEARER,
    "password of an operator's server": OPERATOR_PASSWORD,
    "query of an operator's server": OPERATOR_QUERY,
    "bearer of a user's server": USER_BEARER,
    "cookie of a user's server": USER_COOKIE,
    "query of a user's server": USER_QUERY,
    "answer of a person": ANSWER,
    "service that is no MCP server": INSIDE,
}


def written(marker: str) -> set[str]:
    """List how a marker may be written; of each form a part is enough."""
    data = marker.encode()
    forms = {marker[:14], quote(marker, safe="")[:14], data.hex()[:28]}
    for shift in range(3):
        encoded = base64.b64encode(bytes(shift) + data).decode()
        forms.add(encoded[4:16])
    return forms


def leaked(text_: str) -> list[str]:
    return [what for what, marker in MARKERS.items() if any(form in text_ for form in written(marker))]


SERVE = """
import logging, socket, sys
from functools import partial
import anyio
from app.logs import configure_logging
from app.main import create_app, serve_app
from app.settings import Settings

settings = Settings.read()
servers = settings.rooms().servers.environment
configure_logging("debug", secrets=settings.secrets(servers))
logging.getLogger().setLevel("DEBUG")
listener = socket.create_server(("127.0.0.1", 0))
tell = partial(print, flush=True)
serve = partial(serve_app, create_app(settings), listener=listener, on_ready=tell)
anyio.run(serve, backend_options={"use_uvloop": True})
"""
"""What `toolferry serve` does, with the root logger turned up."""


@dataclass
class Stage:
    """A caller of the service, and what the service meets."""

    client: httpx.AsyncClient
    url: str
    upstream: FakeUpstream
    raw: RawMcp
    """Any server that a scene needs, of both classes: it answers as `act` says."""
    act: list[Reply] = field(default_factory=list[Reply])
    """What is answered to the next calls of tools; then "fine"."""
    hello: list[Reply] = field(default_factory=list[Reply])
    """What is answered to the next handshakes."""
    lists: list[Reply] = field(default_factory=list[Reply])
    """What is answered to who asks for tools next."""
    model: "list[Answer | Callable[[Request], Answer]]" = field(default_factory=list[Any])
    """What the model says next; otherwise it calls `act` of the server that was asked for, then says "Done."."""
    shown: list[str] = field(default_factory=list[str])
    """All that callers got to see."""

    def mine(self, **fields: Any) -> dict[str, Any]:
        """An entry for a server of the user's."""
        headers = {"Authorization": f"Bearer {USER_BEARER}", "X-Session": f"sid={USER_COOKIE}"}
        return {"name": "mine", "url": f"{self.raw.url}?api_key={USER_QUERY}", "headers": headers, **fields}

    async def send(self, method: str, path: str, **more: Any) -> httpx.Response:
        response = await self.client.request(method, path, **more)
        self.note(response)
        self.shown.append(response.text)
        return response

    def note(self, response: httpx.Response) -> None:
        self.shown.append(repr(response.headers.multi_items()))

    async def run(self, *servers: Any, names: list[str] | None = None, **body: Any) -> list[Any]:
        """Start a run and return its events, each answered by `body.pop("on")` where there is such a function."""
        on, seen = body.pop("on", None), list[Any]()
        asked = {"messages": USER, "model": "m", "servers": list(servers), "server_names": names, **body}
        if names is None:
            asked["server_names"] = [entry["name"] for entry in servers]
        async with self.client.stream(
            "POST", "/v1/runs", json=asked, headers={"X-User-Token": USER_TOKEN}, timeout=20
        ) as response:
            self.note(response)
            async for event in events(EventSource(response)):
                seen.append(event.data)
                self.shown.append(json.dumps(event.data, ensure_ascii=False))
                if on is not None:
                    await on(response.headers["x-run-id"], event.data)
        await self.send("GET", f"/v1/runs/{response.headers['x-run-id']}")
        return seen


Scene: TypeAlias = Callable[[Stage], Awaitable[object]]


def last(seen: list[Any]) -> Any:
    return seen[-1].get("code") or seen[-1].get("outcome")


def of_type(seen: list[Any], kind: str) -> list[Any]:
    return [data for data in seen if data["type"] == kind]


def codes(seen: list[Any]) -> list[str]:
    return [data["code"] for data in of_type(seen, "tool") if data["subtype"] == "error"]


def states(seen: list[Any]) -> list[str]:
    return [data["state"] for data in of_type(seen, "server")]


def everything(request: RawRequest) -> str:
    """Say all that a request brought, as servers do in their errors."""
    told = [request.path, *(f"{name}: {value}" for name, value in request.headers.items())]
    scheme, _, credential = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        told.append(base64.b64decode(credential).decode())
    return "; ".join(told)


SAYS: dict[str, tuple[Reply, str]] = {
    "an error that repeats the request": (lambda r: json_reply(error_of(r, -32000, everything(r))), "tool_failed"),
    "a 401 that repeats the request": (
        lambda r: http_reply(401, everything(r).encode(), WWW_Authenticate=f'Bearer error="{everything(r)}"'),
        "tool_failed",
    ),
    "a page that repeats the request": (
        lambda r: http_reply(500, f"<html>{everything(r)}{INSIDE}</html>".encode(), "text/html"),
        "tool_outcome_unknown",
    ),
    "a redirect to another place": (
        lambda r: http_reply(307, Location=f"http://127.0.0.1:9/{INSIDE}?{quote(everything(r))}"),
        "server_unreachable",
    ),
    "JSON that is not MCP": (lambda r: json_reply({"id": r.id, "found": [INSIDE] * 9}), "tool_outcome_unknown"),
    "a result of another shape": (lambda r: json_reply(result_of(r, {INSIDE: [INSIDE]})), "tool_failed"),
    "an event stream that breaks off": (
        lambda _: http_reply(200, f"event: message\ndata: {{{INSIDE}\n\n".encode(), "text/event-stream"),
        "tool_outcome_unknown",
    ),
    "no HTTP": (lambda _: f"HTTP/1.1 200 {INSIDE}\r\n{INSIDE}\r\n\r\n".encode(), "tool_outcome_unknown"),
    "nothing": (lambda _: CUT, "tool_outcome_unknown"),
}  # fmt: skip
"""What a server says to a call, and what the caller learns of it."""

SCENES: dict[str, Scene] = {}


def scene(name: str) -> Callable[[Scene], Scene]:
    def add(play: Scene) -> Scene:
        SCENES[name] = play
        return play

    return add


def _answers(reply: Reply, code: str, server: str) -> Scene:
    async def play(stage: Stage) -> None:
        stage.act.append(reply)
        seen = await (stage.run(stage.mine()) if server == "mine" else stage.run(names=[server]))
        assert codes(seen) == [code], seen
        assert last(seen) == "completed"

    return play


for _name, (_reply, _code) in SAYS.items():
    for _server in ("mine", "ops", "basic"):
        SCENES[f"{_server} answers a call with {_name}"] = _answers(_reply, _code, _server)


def _greets(reply: Reply, state: str) -> Scene:
    async def play(stage: Stage) -> None:
        stage.hello += [reply] * 9
        seen = await stage.run(stage.mine())
        assert states(seen)[-1] == state, seen
        answer = await stage.send("POST", "/v1/servers/check", json=stage.mine())
        assert answer.json()["reachable"] is (state == "authRequired")
        stage.hello.clear()

    return play


for _name, (_reply, _code) in SAYS.items():
    _state = "authRequired" if "401" in _name else "unavailable"
    SCENES[f"mine answers the handshake with {_name}"] = _greets(_reply, _state)


@scene("all goes well")
async def _(stage: Stage) -> None:
    seen = await stage.run(stage.mine(), names=["mine", "ops", "basic"], include=["tools"])
    assert last(seen) == "completed"
    assert states(seen).count("ready") == 3


@scene("servers are listed and tried")
async def _(stage: Stage) -> None:
    listed = await stage.send("GET", "/v1/servers")
    assert {entry["name"]: entry["state"] for entry in listed.json()["data"]} == {
        **dict.fromkeys(("ops", "basic"), "ready"),
        "shy": "authRequired",
        "closed": "unavailable",
        "no tls": "unavailable",
        "bad header": "rejected",
    }
    for entry in listed.json()["data"]:
        await stage.send("POST", "/v1/servers/check", json={"name": entry["name"]})
    await stage.send("POST", "/v1/servers/check", json=stage.mine())
    await stage.send("GET", "/v1/models")


def _meets(state: str, **fields: Any) -> Scene:
    async def play(stage: Stage) -> None:
        entry = {**stage.mine(), **fields}
        seen = await stage.run(entry)
        assert states(seen)[-1] == state, seen
        await stage.send("POST", "/v1/servers/check", json=entry)

    return play


_QUERY = f"?api_key={USER_QUERY}"
SCENES.update(
    {
        "a closed port": _meets("unavailable", url=f"http://127.0.0.1:9/mcp{_QUERY}"),
        "a name that nobody has": _meets("rejected", url=f"https://mcp.nobody.test/mcp{_QUERY}"),
        "an address of the inside": _meets("rejected", url=f"http://169.254.169.254/{_QUERY}"),
        "userinfo": _meets("rejected", url=f"https://u:{USER_COOKIE}@a.example/mcp{_QUERY}"),
        "a URL that is none": _meets("rejected", url=f"https://a.example:{USER_COOKIE}/mcp{_QUERY}"),
        "a line break in a header": _meets("rejected", headers={"Authorization": f"Bearer {USER_BEARER}\n"}),
        "a header that is not ASCII": _meets("rejected", headers={"Authorization": f"Bearer {USER_BEARER}é"}),
        "a header's name that is none": _meets("rejected", headers={f"X {USER_BEARER}": "x"}),
        "a header that is kept back": _meets("rejected", headers={"Host": USER_BEARER}),
    }
)


@scene("TLS where there is none")
async def _(stage: Stage) -> None:
    url = stage.raw.url.replace("http:", "https:") + _QUERY
    assert states(await stage.run({**stage.mine(), "url": url}))[-1] == "unavailable"


_HEADERS = {"Authorization": f"Bearer {USER_BEARER}", "Cookie": USER_COOKIE}
_ENTRY: dict[str, Any] = {"name": "mine", "url": f"https://a.example/mcp{_QUERY}", "headers": _HEADERS}
WRONG: dict[str, Any] = {
    "no url": {"servers": [{"name": "mine", "headers": _HEADERS}]},
    "no name": {"servers": [{**_ENTRY, "name": None}]},
    "another kind of name": {"servers": [{**_ENTRY, "name": [USER_BEARER]}]},
    "no absolute url": {"servers": [{**_ENTRY, "url": f"mcp{_QUERY}"}]},
    "a blank in the url": {"servers": [{**_ENTRY, "url": f"https://a .example/{_QUERY}"}]},
    "too long a url": {"servers": [{**_ENTRY, "url": f"https://a.example/{_QUERY}" + "x" * 3000}]},
    "headers as a text": {"servers": [{**_ENTRY, "headers": USER_BEARER}]},
    "headers as a list": {"servers": [{**_ENTRY, "headers": [USER_BEARER]}]},
    "a header as a list": {"servers": [{**_ENTRY, "headers": {"Authorization": [USER_BEARER]}}]},
    "an unknown field": {"servers": [{**_ENTRY, "token": USER_BEARER}]},
    "servers as a text": {"servers": USER_BEARER},
    "a server as a text": {"servers": [USER_BEARER]},
    "both names of a field": {"servers": [_ENTRY], "selectedServers": [_ENTRY]},
    "an unknown zone": {"timezone": f"Europe/{USER_COOKIE}"},
    "an unknown provider": {"provider": f"{USER_COOKIE} {USER_COOKIE}"},
    "an unknown choice": {"tool_choice": USER_COOKIE},
    "an unknown approval": {"approval": USER_COOKIE},
    "a number as a text": {"max_rounds": USER_COOKIE},
    "no messages": {"messages": USER_COOKIE},
    "an odd message": {"messages": [{"role": USER_COOKIE, "content": USER_COOKIE}]},
    "an odd part": {"messages": [{"role": "user", "content": [{"type": "text", "text": [USER_COOKIE]}]}]},
    "odd metadata": {"metadata": {"a": [USER_COOKIE]}},
    "a number that is none beside it": {"temperature": float("nan"), "servers": [_ENTRY]},
    "half a pair beside it": {"preprompt": "\ud800", "servers": [_ENTRY]},
    "too many headers": {"servers": [{**_ENTRY, "headers": {f"X-{n}": USER_BEARER for n in range(40)}}]},
}


def _is_refused(body: Any) -> Scene:
    async def play(stage: Stage) -> None:
        whole = {"messages": USER, "model": "m", **body}
        raw = {"content": json.dumps(whole), "headers": {"content-type": "application/json"}}
        answer = await stage.send("POST", "/v1/runs", **raw)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_request")
        for entry in body.get("servers", ()) if isinstance(body.get("servers"), list) else ():
            raw["content"] = json.dumps(entry)
            await stage.send("POST", "/v1/servers/check", **raw)

    return play


SCENES.update({f"a request is wrong: {name}": _is_refused(body) for name, body in WRONG.items()})


@scene("a request is no JSON")
async def _(stage: Stage) -> None:
    content = json.dumps({"messages": USER, "servers": [_ENTRY]})[:-3]
    headers = {"content-type": "application/json"}
    answer = await stage.send("POST", "/v1/runs", content=content, headers=headers)
    assert answer.status_code == 400
    answer = await stage.send("POST", "/v1/runs", content=content, headers={"content-type": USER_COOKIE})
    assert answer.status_code == 415


@scene("keys that are wrong")
async def _(stage: Stage) -> None:
    for given in (f"Bearer {CALLER_KEY}x", f"Basic {CALLER_KEY}", CALLER_KEY):
        answer = await stage.send("GET", "/v1/runs/run_1", headers={"Authorization": given})
        assert answer.status_code == 401
    for token in (f"{USER_TOKEN} {USER_TOKEN}", f"{USER_TOKEN}é".encode()):
        headers = [(b"X-User-Token", token if isinstance(token, bytes) else token.encode())]
        answer = await stage.send("POST", "/v1/runs", json={"messages": USER, "model": "m"}, headers=headers)
        assert answer.status_code == 400
    answer = await stage.send("GET", f"/v1/runs/run_{'0' * 32}/events?token={CALLER_KEY}&after={USER_COOKIE}")
    assert answer.status_code == 404


def _repeats(status: int, key: str) -> Answer:
    return failure(status, f"Incorrect API key provided: {key}. {key} is not known.", code=f"no {key}")


BREAKS: dict[str, tuple[Callable[[str], Answer], str]] = {
    "a 401": (lambda key: _repeats(401, key), "upstream_auth"),
    "a 400": (lambda key: _repeats(400, key), "upstream_refused"),
    "a 404": (lambda key: _repeats(404, key), "upstream_refused"),
    "a 429": (lambda key: _repeats(429, key), "upstream_rate_limited"),
    "a 500": (lambda key: _repeats(500, key), "upstream_failed"),
    "a page": (lambda key: Answer([f"<h1>{key}</h1>".encode()], 502, {"Content-Type": "text/html"}), "upstream_failed"),
    "a text": (lambda key: Answer([key.encode()], 502, {"Content-Type": "text/plain"}), "upstream_failed"),
    "an error in the stream": (lambda key: stream(text("a"), {"error": {"message": key}}), "upstream_failed"),
    "a stream of errors": (lambda key: stream({"error": key}), "upstream_failed"),
    "a broken stream": (
        lambda key: stream(text("a"), f"data: {{{key}\n\n".encode(), done=False),
        "upstream_incomplete",
    ),
    "another kind of content": (
        lambda key: Answer([b"x"], 200, {"Content-Type": f"image/{key}"}),
        "upstream_failed",
    ),
    "another place": (
        lambda key: Answer([b"x"], 307, {"Location": f"http://127.0.0.1:9/?key={key}"}),
        "upstream_unreachable",
    ),
    "no HTTP": (lambda key: Answer([b"x"], 200, {f"X {key}\r\n": key}), "upstream_unreachable"),
}
"""What an endpoint repeats a key in, and how a run ends then."""


def _endpoint_repeats(make: Callable[[str], Answer], code: str) -> Scene:
    def repeat(request: Request) -> Answer:
        return make(request.headers["authorization"].removeprefix("Bearer "))

    async def play(stage: Stage) -> None:
        stage.model += [repeat] * 9
        assert last(await stage.run()) == code
        body = {"messages": USER, "model": "m", "stream": False, "server_names": []}
        answer = await stage.send("POST", "/v1/runs", json=body)
        assert (answer.status_code >= 400, answer.json()["error"]["code"]) == (True, code)

    return play


SCENES.update({f"the endpoint repeats a key in {name}": _endpoint_repeats(*how) for name, how in BREAKS.items()})


async def _progresses(request: RawRequest) -> bytes:
    await request.write(sse_reply([progress_of(request, 1, message=everything(request))], end=False))
    return sse_frame(result_of(request, text_result("fine"))) + b"0\r\n\r\n"


REPEATS: dict[str, Reply] = {
    "a result": lambda r: json_reply(result_of(r, text_result(everything(r)))),
    "structured content": lambda r: json_reply(
        result_of(r, {"content": [], "structuredContent": {everything(r): [everything(r)]}})
    ),
    "a result that is an error": lambda r: json_reply(result_of(r, {**text_result(everything(r)), "isError": True})),
    "a result on a stream": lambda r: sse_reply([result_of(r, text_result(everything(r)))]),
    "progress": _progresses,
}
"""Where a careless server may repeat what it was sent, in a proper answer to a call."""


def _repeats_in_a_call(reply: Reply, server: str) -> Scene:
    async def play(stage: Stage) -> None:
        stage.act.append(reply)
        seen = await (stage.run(stage.mine()) if server == "mine" else stage.run(names=[server]))
        assert last(seen) == "completed"
        assert stage.act == []

    return play


SCENES.update(
    {
        f"{server} repeats what it was sent in {name}": _repeats_in_a_call(reply, server)
        for name, reply in REPEATS.items()
        for server in ("mine", "ops", "basic")
    }
)


@scene("mine repeats what it was sent in its list")
async def _(stage: Stage) -> None:
    def entries(request: RawRequest) -> bytes:
        described = tool_entry("act", description=everything(request), title=everything(request))
        schema = {"type": "object", "properties": {"a": {"type": "string", "description": everything(request)}}}
        return json_reply(result_of(request, {"tools": [{**described, "inputSchema": schema}]}))

    stage.lists.append(entries)
    seen = await stage.run(stage.mine(), include=["tools"])
    assert (last(seen), states(seen), stage.lists) == ("completed", ["ready"], [])
    stage.lists.append(entries)
    answer = await stage.send("POST", "/v1/servers/check", json=stage.mine())
    assert (answer.json()["reachable"], stage.lists) == (True, [])


@scene("a call is skipped, and the run stopped")
async def _(stage: Stage) -> None:
    for server in ("mine", "ops"):
        stage.act.append(lambda _: HANG)
        before = stage.raw.asked["tools/call"]

        async def stop(run_id: str, data: Any, *, before: int = before) -> None:
            if data.get("subtype") == "call":
                await wait_until(lambda: stage.raw.asked["tools/call"] > before)
                await stage.send("POST", f"/v1/runs/{run_id}/cancel")

        seen = await (stage.run(stage.mine(), on=stop) if server == "mine" else stage.run(names=["ops"], on=stop))
        assert (codes(seen), last(seen)) == (["cancelled"], "aborted")


@scene("a caller leaves")
async def _(stage: Stage) -> None:
    closed = anyio.Event()

    async def hang(request: RawRequest) -> str:
        await request.write(sse_reply([progress_of(request, 1, message="begun")], end=False))
        closed.set()
        return HANG

    stage.act.append(hang)
    body = {"messages": USER, "model": "m", "servers": [stage.mine()], "server_names": ["mine"]}
    async with stage.client.stream("POST", "/v1/runs", json=body) as response:
        await closed.wait()
    run_id = response.headers["x-run-id"]

    async def is_over() -> bool:
        return (await stage.send("GET", f"/v1/runs/{run_id}")).json()["state"] == "ended"

    with anyio.fail_after(5):
        while not await is_over():  # noqa: ASYNC110  # it is another process
            await anyio.sleep(0.01)


@scene("a person is asked")
async def _(stage: Stage) -> None:
    form = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 40}}, "required": ["name"]}
    question = {"mode": "form", "message": "Who?", "requestedSchema": form}
    answers: list[httpx.Response] = []

    async def ask(request: RawRequest) -> bytes:
        asked = {"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": question}
        await request.write(sse_reply([asked], end=False))
        await wait_until(lambda: any(seen.id == "q" for seen in stage.raw.requests))
        return sse_frame(result_of(request, text_result("thanks"))) + b"0\r\n\r\n"

    async def answer(run_id: str, data: Any) -> None:
        if data["type"] == "elicitation" and data["subtype"] == "request":
            path = f"/v1/runs/{run_id}/inputs/{data['inputId']}"
            tried = [{"name": [ANSWER]}, {"name": ANSWER * 9}, {"other": ANSWER}, {"name": ANSWER}]
            bodies = [*({"action": "accept", "content": content} for content in tried), {"action": ANSWER}]
            answers.extend([await stage.send("POST", path, json=body) for body in bodies])

    stage.act.append(ask)
    seen = await stage.run(stage.mine(), interactive=True, on=answer)
    assert [response.status_code for response in answers] == [422, 422, 422, 204, 422]
    (taken,) = [request for request in stage.raw.requests if request.id == "q"]
    assert ANSWER.encode() in taken.body
    assert last(seen) == "completed"


@scene("what is no HTTP request")
async def _(stage: Stage) -> None:
    host, _, port = stage.url.removeprefix("http://").partition(":")
    key = f"Authorization: Bearer {CALLER_KEY}\r\nX-User-Token: {USER_TOKEN}\r\n"
    socket_head = f"Host: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    for request in (
        f"GET /?token={USER_COOKIE} HTTP/1.1\r\n{key}{USER_COOKIE}\r\n\r\n",
        f"{USER_COOKIE}\r\n\r\n",
        f"GET /?t={USER_COOKIE} HTTP/9.9\r\n{key}\r\n",
        f"GET /x?t={USER_COOKIE} HTTP/1.1\r\n{key}{socket_head}Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        f"GET /x?t={USER_COOKIE} HTTP/1.1\r\n{key}{socket_head}Sec-WebSocket-Key: {USER_COOKIE}\r\n\r\n",
        f"POST /v1/runs HTTP/1.1\r\nHost: {host}:{port}\r\n{key}Content-Length: {USER_COOKIE}\r\n\r\n",
    ):
        stream_ = await anyio.connect_tcp(host, int(port))
        async with stream_:
            await stream_.send(request.encode())
            with anyio.fail_after(5):
                stage.shown.append((await stream_.receive()).decode("latin-1"))


HELLO: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "raw", "version": "1"},
}


@dataclass
class Told:
    """What came of all scenes."""

    shown: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """What callers got to see, by scene."""
    failed: dict[str, BaseException] = field(default_factory=dict[str, BaseException])
    asked: list[Request] = field(default_factory=list[Request])
    """What the model endpoint got."""
    received: list[RawRequest] = field(default_factory=list[RawRequest])
    """What the MCP servers got."""
    drained: list[Any] = field(default_factory=list[Any])
    """The events of a run that was under way when the service was stopped."""
    logged: str = ""


def _replies(pending: dict[str, list[Reply]]) -> dict[str, Reply]:
    def next_of(kind: str, otherwise: Callable[[RawRequest], Any]) -> Reply:
        def reply(request: RawRequest) -> Any:
            if request.path.startswith("/shy"):
                return http_reply(401, b"", WWW_Authenticate=f'Bearer realm="{everything(request)}"')
            # What every server gets is what is next, whoever asks: scenes come one by one.
            is_mine = USER_QUERY in request.path
            waiting = pending[kind] if kind == "act" or is_mine else list[Reply]()
            chosen = waiting.pop(0) if waiting else otherwise
            return chosen(request) if callable(chosen) else chosen

        return reply

    return {
        "initialize": next_of("hello", lambda request: json_reply(result_of(request, HELLO))),
        "server/discover": next_of("hello", lambda request: json_reply(error_of(request, -32601, "unknown method"))),
        "tools/call": next_of("act", lambda request: json_reply(result_of(request, text_result("fine")))),
        "tools/list": next_of("list", lambda request: json_reply(result_of(request, {"tools": [tool_entry("act")]}))),
        "POST": http_reply(202),
    }


def _script(pending: list[Answer | Callable[[Request], Answer]], request: Request) -> Answer:
    if pending:
        answer = pending.pop(0)
        return answer if isinstance(answer, Answer) else answer(request)
    messages = request.json["messages"]
    if any(message["role"] == "tool" for message in messages) or "tools" not in request.json:
        return stream(text("Done."), end())
    return stream(call(0, "c1", request.json["tools"][0]["function"]["name"], "{}"), end("tool_calls"))


def _key(number: int) -> str:
    return f"{CALLER_KEY}{number}"


def _environment(upstream: FakeUpstream, raw: RawMcp) -> dict[str, str]:
    basic = base64.b64encode(f"operator:{OPERATOR_PASSWORD}".encode()).decode()
    bearer = {"Authorization": f"Bearer {OPERATOR_BEARER}"}
    root, query = raw.url.removesuffix("/mcp"), f"?key={quote(OPERATOR_QUERY)}"
    servers = [
        {"name": "ops", "url": f"{root}/ops{query}", "headers": bearer},
        {"name": "basic", "url": f"{root}/basic{query}", "headers": {"Authorization": f"Basic {basic}"}},
        {"name": "shy", "url": f"{root}/shy{query}", "headers": bearer},
        {"name": "closed", "url": f"http://127.0.0.1:9/{query}", "headers": bearer},
        {"name": "no tls", "url": f"{root.replace('http:', 'https:')}/tls{query}", "headers": bearer},
        {"name": "bad header", "url": f"{root}/bad{query}", "headers": {"Authorization": f"{OPERATOR_BEARER}\n"}},
        {"name": "not used", "url": [OPERATOR_QUERY], "headers": {"Authorization": OPERATOR_BEARER}},
    ]
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "LOG_LEVEL": "debug",
        "OPENAI_BASE_URL": upstream.url,
        "OPENAI_API_KEY": MODEL_KEY,
        "HF_TOKEN": HF_TOKEN,
        "EXA_API_KEY": EXA_KEY,
        "MCP_FORWARD_HF_USER_TOKEN": "true",
        "USE_USER_TOKEN": "true",
        "MCP_ALLOW_INSECURE_URLS": "true",
        "MCP_SERVERS": json.dumps(servers),
        # A caller whose servers keep failing is made to wait: each scene has one of its own.
        "TOOLFERRY_API_KEYS": ",".join(f"caller{n}:{sha256(_key(n).encode()).hexdigest()}" for n in range(len(SCENES))),
        "TOOLFERRY_UPSTREAM_BACKOFF_MS": "1",
        "TOOLFERRY_CONNECT_MS": "2000",
    }


@asynccontextmanager
async def _open_process(
    environment: dict[str, str], folder: Path
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, str]]:
    log = folder / "log"
    with log.open("wb") as written_to:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SERVE, cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE, stderr=written_to
        )
    try:
        assert process.stdout is not None
        with anyio.fail_after(20):
            url = (await process.stdout.readline()).decode().strip()
        assert url, log.read_text()
        yield process, url
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _play(folder: Path) -> Told:
    told = Told()
    pending: dict[str, list[Reply]] = {"act": [], "hello": [], "list": []}
    answers: list[Answer | Callable[[Request], Answer]] = []
    async with (
        open_raw_mcp(_replies(pending)) as raw,
        open_upstream(lambda request: _script(answers, request)) as upstream,
        _open_process(_environment(upstream, raw), folder) as (process, url),
        httpx.AsyncClient(base_url=url, timeout=20) as client,
    ):
        for number, (name, play) in enumerate(SCENES.items()):
            of_scene = RawMcp(raw.url.replace("/mcp", f"/{number}"), raw.requests)
            client.headers["Authorization"] = f"Bearer {_key(number)}"
            stage = Stage(client, url, upstream, of_scene, pending["act"], pending["hello"], pending["list"], answers)
            try:
                with anyio.fail_after(20):
                    await play(stage)
            except Exception as error:  # noqa: BLE001  # told by the test of the scene
                told.failed[name] = error
            for waiting in (*pending.values(), answers):
                waiting.clear()
            told.shown[name] = stage.shown
        told.drained = await _drain(client, process, raw, pending["act"])
        told.asked, told.received = upstream.requests, raw.requests
    told.logged = (folder / "log").read_text()
    return told


async def _drain(
    client: httpx.AsyncClient, process: asyncio.subprocess.Process, raw: RawMcp, act: list[Reply]
) -> list[Any]:
    """Stop the service while a call is under way."""
    act.append(lambda _: HANG)
    before, seen = raw.asked["tools/call"], list[Any]()
    body = {"messages": USER, "model": "m", "server_names": ["ops"]}
    async with client.stream("POST", "/v1/runs", json=body) as response:
        async for event in events(EventSource(response)):
            seen.append(event.data)
            if event.data.get("subtype") == "call":
                await wait_until(lambda: raw.asked["tools/call"] > before)
                process.send_signal(signal.SIGTERM)
    with anyio.fail_after(10):
        await process.wait()
    return seen


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return anyio.run(_play, tmp_path_factory.mktemp("leaks"))


@pytest.mark.parametrize("name", SCENES)
def test_no_caller_sees_a_secret_when(name: str, told: Told) -> None:
    if name in told.failed:
        raise told.failed[name]
    assert [(leaked(shown), shown) for shown in told.shown[name] if leaked(shown)] == []


def test_no_secret_is_told_when_the_service_is_stopped(told: Told) -> None:
    assert last(told.drained) == "shutting_down"
    assert leaked(json.dumps(told.drained)) == []


def test_no_line_of_the_log_holds_a_secret(told: Told) -> None:
    lines = told.logged.splitlines()
    assert sum("run ended" in line for line in lines) > len(SCENES) / 2
    assert [(leaked(line), line) for line in lines if leaked(line)] == []


def test_log_says_nothing_broke_for_a_reason_that_nobody_thought_of(told: Told) -> None:
    assert [line for line in told.logged.splitlines() if "Traceback" in line or '"level": "error"' in line] == []


def test_model_is_told_no_secret(told: Told) -> None:
    asked = [request.body.decode() for request in told.asked]
    assert [(leaked(body), body) for body in asked if leaked(body)] == []


def test_secrets_go_to_those_they_belong_to_and_to_nobody_else(told: Told) -> None:
    """Also shows that there was something to leak."""
    at_servers: dict[str, set[str]] = {}
    for request in told.received:
        place = request.path.split("/")[1].partition("?")[0]
        at_servers.setdefault("mine" if place.isdigit() else place, set()).update(leaked(everything(request)))
    bearer, password = "bearer of an operator's server", "password of an operator's server"
    query, mine = "query of an operator's server", "query of a user's server"
    assert at_servers["ops"] == {bearer, query}
    assert at_servers["basic"] == {password, query}
    assert at_servers["mine"] == {"bearer of a user's server", "cookie of a user's server", mine}
    at_model = {marker for request in told.asked for marker in leaked(json.dumps(request.headers) + request.path)}
    assert at_model == {"key of the model", "token of the caller"}
