"""Every socket to an MCP server: looked up once, judged, dialled as judged, and to one origin alone.

What is asked and dialled is seen at a network that is not real; everything above it is what the service uses.
"""

import json
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import httpcore2
import httpx2
import pytest

from app.domain.secrets import Secret
from app.domain.spec import ServerSpec
from app.toolbox.admission import Policy
from app.toolbox.dialling import Lookups, NotDialled
from app.toolbox.egress import Egress
from app.toolbox.faults import Exchange, Fault, under_way
from app.toolbox.grants import granted_nets_from_text, hosts_from_text
from app.toolbox.line import ConnectionLimits
from app.toolbox.pool import Party, Pool, PoolLimits
from app.toolbox.trouble import Trouble
from app.toolbox.wire import UNREACHABLE, EgressLimits, Wire
from tests.fakes.dialling import OK, PUBLIC, FakeNet
from tests.fakes.raw_mcp import HANG, RawRequest, http_reply, open_raw_mcp, sse_reply
from tests.fakes.toolboxes import operator, user

pytestmark = pytest.mark.anyio

VECTORS: Any = json.loads((Path(__file__).parent / "vectors" / "ssrf-urls.json").read_text())
POLICIES: dict[str, tuple[Literal["operator", "user"], Policy]] = {
    "user": ("user", Policy()),
    "user_local": ("user", Policy(allow_insecure_urls=True)),
    "user_granted": (
        "user",
        Policy(user_nets=granted_nets_from_text(",".join(VECTORS["policies"]["user_granted"]["networks"]))),
    ),
    "user_listed": (
        "user",
        Policy(
            user_servers="listed", user_hosts=hosts_from_text(",".join(VECTORS["policies"]["user_listed"]["hosts"]))
        ),
    ),
    "operator": ("operator", Policy()),
}
NAMED = "https://mcp.example.com/mcp"
MESSAGE = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


@asynccontextmanager
async def open_way(
    server: ServerSpec, net: FakeNet, policy: Policy | None = None, limits: EgressLimits | None = None
) -> AsyncGenerator[httpx2.AsyncClient]:
    """Open the client of one connection, as a session would."""
    egress = Egress(policy or Policy(), limits or EgressLimits(), net.resolve, dial=net.dial)
    refused: NotDialled | None = None
    async with anyio.create_task_group() as chores:
        try:
            client = egress.client(server, Wire(egress.limits, chores))
        except NotDialled as error:
            refused = error  # out of the group, which would wrap it
        else:
            async with client:
                yield client
        chores.cancel_scope.cancel()
    if refused is not None:
        raise refused


async def post(client: httpx2.AsyncClient, url: str, **headers: str) -> Fault | None:
    """Send one request as a call would, and return what went wrong."""
    exchange = Exchange(5, is_asked=True)
    token = under_way.set(exchange)
    try:
        await client.post(url, content=MESSAGE, headers={**HEADERS, **headers})
    finally:
        under_way.reset(token)
    return exchange.fault


async def reaches(server: ServerSpec, net: FakeNet, policy: Policy | None = None) -> bool:
    try:
        async with open_way(server, net, policy) as client:
            return await post(client, server.url) is None
    except NotDialled:
        return False


@pytest.mark.parametrize(
    "row", [row for row in VECTORS["entries"] if isinstance(row["url"], str)], ids=lambda row: row["id"]
)
async def test_vector_is_dialled_as_written(row: Any) -> None:
    trust, policy = POLICIES[row.get("policy", "user")]
    net = FakeNet(answers=row.get("dns", [[]]))
    server = ServerSpec("Weather", row["url"], trust)
    expected: list[bool] = row.get("attempts", [row["allowed"]])
    assert [await reaches(server, net, policy) for _ in expected] == expected
    assert len(net.dialled) == sum(expected), "what is refused is never dialled"
    if "dials" in row:
        assert [address for address, _ in net.dialled] == row["dials"]
    if "max_lookups" in row:
        assert len(net.asked) <= row["max_lookups"]
    assert len(net.asked) <= len(expected)
    if "asks" in row and net.asked:
        assert {name for name, _ in net.asked} == {row["asks"]}
    judged_good = {answer for answers in row.get("dns", []) for answer in answers}
    assert all(address in judged_good for address, _ in net.dialled) or not net.asked


async def test_name_stays_in_the_host_header_and_in_tls() -> None:
    net = FakeNet(answers=[[PUBLIC]])
    server = user("https://mcp.example.com:8443/a/mcp?key=1")
    assert await reaches(server, net)
    assert net.asked == [("mcp.example.com.", 8443)]
    assert net.dialled == [(PUBLIC, 8443)]
    assert net.tls_names == ["mcp.example.com"]
    head = net.requests[0].decode().split("\r\n")
    assert head[0] == "POST /a/mcp?key=1 HTTP/1.1"
    assert [line for line in head if line.lower().startswith("host:")] == ["Host: mcp.example.com:8443"]


async def test_kept_connection_asks_no_more_and_each_new_one_asks_again() -> None:
    net = FakeNet(answers=[[PUBLIC], ["127.0.0.1"]])
    async with open_way(user(NAMED), net) as client:
        assert [await post(client, NAMED) for _ in range(3)] == [None] * 3
        assert (len(net.asked), len(net.dialled)) == (1, 1)
        net.replies = [OK.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)]
        assert await post(client, NAMED) is None
        assert await post(client, NAMED) == UNREACHABLE, "the name leads inside by now"
    assert (len(net.asked), len(net.dialled)) == (2, 1)


FAILURES: dict[str, dict[str, Any]] = {
    "refused answer": {"answers": [["10.0.0.5"]]},
    "metadata": {"answers": [["169.254.169.254"]]},
    "mixed answer": {"answers": [[PUBLIC, "127.0.0.1"]]},
    "no such name": {"answers": [OSError("no such name")]},
    "name that cannot be asked": {"answers": [UnicodeError("label too long")]},
    "no answer": {"answers": [[]]},
    "nobody there": {"dead": {PUBLIC: httpcore2.ConnectError("refused")}},
    "filtered": {"dead": {PUBLIC: httpcore2.ConnectTimeout()}},
    "our own address": {"own_address": PUBLIC},
}


@pytest.mark.parametrize("net", FAILURES.values(), ids=FAILURES)
async def test_who_brings_a_server_is_told_the_same_whatever_is_in_its_place(net: dict[str, Any]) -> None:
    async with open_way(user(NAMED), FakeNet(**net)) as client:
        assert await post(client, NAMED) == UNREACHABLE


TOLD: dict[str, str] = {
    "metadata": "The server's address is one that is never connected to.",
    "no such name": "The host has no address.",
    "nobody there": "The server does not accept connections.",
    "filtered": "The server did not accept the connection in time.",
}


@pytest.mark.parametrize("name", TOLD)
async def test_operator_is_told_why_a_server_is_not_reached(name: str) -> None:
    async with open_way(operator(NAMED), FakeNet(**FAILURES[name])) as client:
        fault = await post(client, NAMED)
    assert fault == Fault("unreachable", TOLD[name])


@pytest.mark.parametrize(
    ("server", "policy", "address", "passes"),
    [
        (user(NAMED), Policy(), PUBLIC, False),
        (user(NAMED), Policy(user_nets=granted_nets_from_text("10.0.0.0/8")), "10.0.0.5", False),
        (user(NAMED), Policy(user_nets=granted_nets_from_text("127.0.0.0/8")), "127.0.0.1", True),
        (user(NAMED), Policy(allow_insecure_urls=True), "10.0.0.5", True),
        (user(NAMED), Policy(allow_insecure_urls=True), "127.0.0.1", True),
        (operator(NAMED), Policy(), PUBLIC, True),
        (operator(NAMED), Policy(), "127.0.0.1", True),
    ],
)
async def test_this_machine_is_reached_only_by_who_may_reach_it(
    server: ServerSpec, policy: Policy, address: str, *, passes: bool
) -> None:
    net = FakeNet(answers=[[address]], own_address=address)
    async with open_way(server, net, policy) as client:
        assert (await post(client, NAMED) is None) == passes
        assert net.dialled == [(address, 443)]
        assert bool(net.requests) == passes
        assert net.closed == (0 if passes else 1)


V6, OTHER_V6, OTHER = "2620:4f:8000::6", "2620:4f:8000::42", "192.175.48.42"


@pytest.mark.parametrize(
    ("answers", "dead", "dialled"),
    [
        ([PUBLIC, OTHER], [], [PUBLIC]),
        ([PUBLIC, OTHER], [PUBLIC], [PUBLIC, OTHER]),
        ([V6, OTHER_V6, PUBLIC], [V6], [V6, PUBLIC]),
        ([V6, OTHER_V6, PUBLIC], [V6, PUBLIC], [V6, PUBLIC, OTHER_V6]),
        ([f"192.175.48.{n}" for n in range(1, 9)], [f"192.175.48.{n}" for n in range(1, 4)], None),
    ],
)
async def test_dead_address_does_not_keep_a_server_away(
    answers: Sequence[str], dead: Sequence[str], dialled: Sequence[str] | None
) -> None:
    net = FakeNet(answers=[answers], dead=dict.fromkeys(dead, httpcore2.ConnectTimeout()))
    assert await reaches(user(NAMED), net)
    assert [address for address, _ in net.dialled] == list(dialled or answers[:4])
    assert len(net.asked) == 1


async def test_each_address_gets_its_share_of_the_time_and_the_last_one_the_rest() -> None:
    answers = [f"192.175.48.{number}" for number in range(1, 9)]
    net = FakeNet(answers=[answers], dead=dict.fromkeys(answers, httpcore2.ConnectTimeout()))
    async with open_way(operator(NAMED), net, limits=EgressLimits(connect_seconds=100.0)) as client:
        fault = await post(client, NAMED)
    assert fault == Fault("unreachable", "The server did not accept the connection in time.")
    # Nothing takes time here, so that all that is left is shared out each time.
    assert net.shares == pytest.approx([25, 100 / 3, 50, 100], rel=0.1)


async def test_pool_of_an_operators_server_serves_no_user() -> None:
    inside = "http://tools.example.com/mcp"
    net = FakeNet(answers=[["10.0.0.5"]])
    egress = Egress(
        Policy(user_nets=granted_nets_from_text("10.20.0.0/16")), EgressLimits(), net.resolve, dial=net.dial
    )
    async with anyio.create_task_group() as chores:
        async with egress.client(operator(inside), Wire(egress.limits, chores)) as client:
            assert await post(client, inside) is None
            async with egress.client(user(inside), Wire(egress.limits, chores)) as other:
                assert await post(other, inside) == UNREACHABLE
    assert len(net.requests) == 1


async def test_unix_sockets_are_never_opened() -> None:
    async with anyio.create_task_group() as chores:
        wire = Wire(EgressLimits(), chores)
        Egress(Policy(), EgressLimits()).client(operator(NAMED), wire)
        assert wire.door is not None
        backend = wire.door._pool._network_backend
        with pytest.raises(NotDialled):
            await backend.connect_unix_socket("/var/run/docker.sock")
        chores.cancel_scope.cancel()


async def test_wire_without_a_way_out_sends_nothing() -> None:
    async with anyio.create_task_group() as chores:
        async with httpx2.AsyncClient(transport=Wire(EgressLimits(), chores), trust_env=False) as client:
            assert await post(client, NAMED) == UNREACHABLE


# The origin

ELSEWHERE = [
    *(
        "http://mcp.example.com/mcp",
        "https://mcp.example.com:8443/mcp",
        "https://example.org/mcp",
        "https://10.0.0.1/mcp",
    ),
    *(
        "https://mcp.example.com./mcp",
        "https://sub.mcp.example.com/mcp",
        "https://u:p@mcp.example.com/mcp",
        "ws://mcp.example.com/",
    ),
    *("https://user@mcp.example.com/mcp", "wss://mcp.example.com/mcp"),
]


@pytest.mark.parametrize("url", ELSEWHERE)
async def test_client_of_one_origin_sends_nothing_to_another(url: str) -> None:
    net = FakeNet()
    async with open_way(user(NAMED), net) as client:
        assert await post(client, url) == UNREACHABLE
        with pytest.raises(NotDialled):
            await client.get(url)
        with pytest.raises(NotDialled):
            await client.delete(url)
    assert not net.dialled
    assert not net.asked


@pytest.mark.parametrize("base", ["https://mcp.example.com:8443/mcp", "http://mcp.example.com:8080/mcp"])
async def test_port_that_is_not_the_usual_one_is_not_left_for_the_usual_one(base: str) -> None:
    net = FakeNet(answers=[["10.0.0.5"]])
    async with open_way(operator(base), net) as client:
        assert await post(client, NAMED) is not None
    assert not net.dialled


@pytest.mark.parametrize("host", ["example.org", "mcp.example.com:8443", "MCP.example.com", "mcp.example.com.", ""])
async def test_host_header_that_is_not_the_urls_goes_nowhere(host: str) -> None:
    net = FakeNet()
    async with open_way(user(NAMED), net) as client:
        assert await post(client, NAMED, Host=host) == UNREACHABLE
    assert not net.dialled


async def test_second_host_header_goes_nowhere() -> None:
    net = FakeNet()
    async with open_way(user(NAMED), net) as client:
        request = client.build_request("GET", NAMED)
        request.headers = httpx2.Headers([*request.headers.multi_items(), ("host", "mcp.example.com")])
        with pytest.raises(NotDialled):
            await client.send(request)
    assert not net.dialled


@pytest.mark.parametrize(
    "url", ["https://mcp.example.com/", "https://mcp.example.com:443/b?c", "HTTPS://MCP.Example.com/mcp"]
)
async def test_all_spellings_of_one_origin_are_one(url: str) -> None:
    async with open_way(user(NAMED), FakeNet()) as client:
        assert await post(client, url) is None


def redirect_to(row: Any) -> bytes:
    return f"HTTP/1.1 {row['status']} Moved\r\nLocation: {row['location']}\r\nContent-Length: 0\r\n\r\n".encode()


async def say(client: httpx2.AsyncClient, row: Any, **options: Any) -> Fault | None:
    """Send what a row of the redirects says, and return what the wire finds wrong; the rest is seen at the network."""
    exchange = Exchange(5, is_asked=row["method"] == "POST")
    token = under_way.set(exchange)
    headers = HEADERS if row["method"] == "POST" else {"accept": "text/event-stream"}
    content = MESSAGE if row["method"] == "POST" else None
    try:
        request = client.build_request(row["method"], row["base"], content=content, headers=headers)
        response = await client.send(request, **options)
        await response.aclose()
    except httpx2.HTTPError:
        pass
    finally:
        under_way.reset(token)
    return exchange.fault


def lines(net: FakeNet) -> list[str]:
    return [request.split(b"\r\n", 1)[0].decode() for request in net.requests]


@pytest.mark.parametrize(
    "row", VECTORS["redirects"], ids=lambda row: f"{row['method']} {row['status']} {row['reason']}"
)
async def test_redirect_is_followed_as_written(row: Any) -> None:
    net = FakeNet(replies=[redirect_to(row), OK])
    async with open_way(user(row["base"]), net) as client:
        assert await say(client, row) is None, "a redirect is no fault; who is asked for one does not follow it"
    place = httpx2.URL(row["base"]).join(row["location"]).raw_path.decode() if row["followed"] else ""
    assert lines(net) == [f"{row['method']} /mcp HTTP/1.1", f"{row['method']} {place} HTTP/1.1"][: 1 + row["followed"]]
    assert {address for address, _ in net.dialled} == {PUBLIC}
    assert {name for name, _ in net.asked} == {"mcp.example.com."}
    if row["followed"] and row["method"] == "POST":
        assert net.requests[1].endswith(MESSAGE)


@pytest.mark.parametrize(
    "row",
    [row for row in VECTORS["redirects"] if not row["location"].startswith("/mcp")],
    ids=lambda row: f"{row['method']} {row['status']} {row['reason']}",
)
async def test_client_that_follows_redirects_by_itself_does_not_leave_the_origin_either(row: Any) -> None:
    net = FakeNet(replies=[redirect_to(row), OK])
    egress = Egress(Policy(), EgressLimits(), net.resolve, dial=net.dial)
    async with anyio.create_task_group() as chores:
        wire = Wire(egress.limits, chores)
        egress.client(user(row["base"]), wire)
        async with httpx2.AsyncClient(transport=wire, trust_env=False, max_redirects=20) as client:
            await say(client, row, follow_redirects=True)
    assert len(net.requests) == 1 + row["followed"]
    assert {name for name, _ in net.asked} == {"mcp.example.com."}
    assert set(net.dialled) == {(PUBLIC, 443)}


async def test_two_redirects_are_followed_and_no_third() -> None:
    net = FakeNet(replies=[redirect_to({"status": 307, "location": f"/{number}"}) for number in range(9)])
    async with open_way(user(NAMED), net) as client:
        await post(client, NAMED)
        assert lines(net) == [f"POST {path} HTTP/1.1" for path in ("/mcp", "/0", "/1")]
        await say(client, {"method": "GET", "base": NAMED})
    assert len(net.requests) == 6


async def test_upgrade_to_https_on_the_same_host_is_looked_up_and_judged_anew() -> None:
    plain = "http://tools.example.com/mcp"
    moved = redirect_to({"status": 308, "location": "https://tools.example.com/mcp"})
    net = FakeNet(answers=[["10.0.0.5"], ["10.0.0.6"]], replies=[moved, OK])
    async with open_way(operator(plain), net) as client:
        assert await post(client, plain) is None
    assert net.dialled == [("10.0.0.5", 80), ("10.0.0.6", 443)]
    assert net.tls_names == ["tools.example.com"]
    bad = FakeNet(answers=[["10.0.0.5"], ["169.254.169.254"]], replies=[moved, OK])
    async with open_way(operator(plain), bad) as client:
        assert await post(client, plain) is not None
    assert len(bad.dialled) == 1


# What the SDK makes of what a server says, over real sockets behind a network that is not

SHORT = ConnectionLimits(connect_seconds=0.4, probe_seconds=0.2, close_seconds=0.2)


@pytest.mark.parametrize("row", VECTORS["sse_endpoints"], ids=lambda row: row["reason"])
async def test_endpoint_of_the_older_transport_is_used_as_written(row: Any) -> None:
    base = httpx2.URL(row["base"]).raw_path.decode()

    async def open_stream(request: RawRequest) -> str:
        event = f"event: endpoint\ndata: {row['data']}\n\n".encode()
        await request.write(sse_reply([], end=False) + f"{len(event):x}\r\n".encode() + event + b"\r\n")
        return HANG

    def answer(request: RawRequest) -> bytes:
        return http_reply(405 if request.path == base else 202)

    async with open_raw_mcp({"server/discover": answer, "initialize": answer, "GET": open_stream}) as raw:
        net = FakeNet(port=httpx2.URL(raw.url).port)
        egress = Egress(Policy(), EgressLimits(), net.resolve, dial=net.dial)
        async with Pool(egress, PoolLimits(), SHORT) as pool:
            with anyio.fail_after(5), pytest.raises(Trouble):
                await pool.lease(user(row["base"]), Party())
        posts = [request.path for request in raw.requests if request.http_method == "POST" and request.path != base]
    assert bool(posts) == row["accepted"]
    if posts:
        assert set(posts) == {httpx2.URL(row["base"]).join(row["data"]).raw_path.decode()}
    assert raw.asked["GET"] == 1
    assert {address for address, _ in net.dialled} == {PUBLIC}
    assert {name for name, _ in net.asked} == {"mcp.example.com."}
    assert set(net.tls_names) == {"mcp.example.com"}


@pytest.mark.parametrize(
    "row",
    [row for row in VECTORS["server_supplied_urls"] if row["field"] != "elicitation.url"],
    ids=lambda row: f"{row['field']} {row['value']}",
)
async def test_address_in_a_challenge_is_never_asked(row: Any) -> None:
    challenge = f'Bearer realm="x", resource_metadata="{row["value"]}", authorization_uri="{row["value"]}"'
    body = json.dumps({"resource_metadata": row["value"], "authorization_servers": [row["value"]]}).encode()
    wants = http_reply(401, body, "application/json", WWW_Authenticate=challenge, Link=f'<{row["value"]}>; rel="x"')
    async with open_raw_mcp({"server/discover": wants, "initialize": wants}) as raw:
        net = FakeNet(port=httpx2.URL(raw.url).port)
        egress = Egress(Policy(), EgressLimits(), net.resolve, dial=net.dial)
        async with Pool(egress, PoolLimits(), SHORT) as pool:
            with pytest.raises(Trouble) as trouble:
                await pool.lease(user(NAMED), Party())
    assert trouble.value.wants_auth
    assert dict(raw.asked) == {"server/discover": 1}
    assert net.asked == [("mcp.example.com.", 443)]


async def test_requests_that_no_call_asked_for_come_in_a_burst_and_then_one_by_one() -> None:
    stream = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 0\r\n\r\n"
    net = FakeNet(replies=[stream])
    async with open_way(user(NAMED), net) as client:
        under_way.set(Exchange(5, is_asked=True))
        with anyio.move_on_after(1.5):
            for number in range(100):
                await client.get(NAMED, headers={"last-event-id": str(number)})
        assert len(net.requests) in (20, 21)
        net.replies = [OK]
        assert await post(client, NAMED) is None, "a call is not held up by them"


async def test_handshakes_count_as_what_no_call_asked_for() -> None:
    net = FakeNet()
    async with open_way(user(NAMED), net) as client:
        under_way.set(Exchange(5))
        with anyio.move_on_after(1.5):
            for _ in range(100):
                await client.post(NAMED, content=MESSAGE, headers=HEADERS)
    assert len(net.requests) in (20, 21)


async def test_secret_in_the_url_or_in_headers_is_in_no_error() -> None:
    server = user("https://mcp.example.com/mcp?key=marker-zz", headers={"X-Key": Secret("marker-zz")})
    for net in FAILURES.values():
        async with open_way(server, FakeNet(**net)) as client:
            under_way.set(None)
            with pytest.raises(httpx2.HTTPError) as error:
                await client.get(server.url)
            assert "marker" not in f"{error.value!r} {error.value} {error.value.__cause__!r}"


async def test_look_ups_that_are_called_off_before_they_begin_give_their_threads_back() -> None:
    lookups = Lookups(lambda _name, _port: [PUBLIC], threads=2, seconds=5)
    for _ in range(10):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await lookups.of("mcp.example.com", 443)
    assert await lookups.of("mcp.example.com", 443) == [PUBLIC]


async def test_look_ups_that_are_called_off_at_any_moment_leave_all_threads_free() -> None:
    all_at_once = threading.Barrier(4)

    def resolve(name: str, _port: int) -> list[str]:
        if name == "last.example.com":
            all_at_once.wait(timeout=10)
        return [PUBLIC]

    lookups = Lookups(resolve, threads=4, seconds=20)
    for number in range(300):
        with anyio.move_on_after(number % 20 / 10_000):
            await lookups.of("mcp.example.com", 443)
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(lookups.of, "last.example.com", 443)
