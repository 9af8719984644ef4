import json
from ipaddress import ip_network
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.secrets import Secret
from app.domain.spec import ServerSpec
from app.toolbox.addresses import RefusalCode, Refused, UrlParts, reach_from_address, split_url
from app.toolbox.admission import Admitted, Policy, judge_answers, judge_server
from app.toolbox.elicitation import Elicitation, elicitation_from_params
from app.toolbox.grants import granted_nets_from_text, hosts_from_text, nets_from_text, ports_from_text
from app.toolbox.selection import servers_from_json

VECTORS: Any = json.loads((Path(__file__).parent / "vectors" / "ssrf-urls.json").read_text())

GRANTED = Policy(user_nets=granted_nets_from_text(",".join(VECTORS["policies"]["user_granted"]["networks"])))
LISTED = Policy(
    user_servers="listed", user_hosts=hosts_from_text(",".join(VECTORS["policies"]["user_listed"]["hosts"]))
)
POLICIES: dict[str, tuple[Literal["operator", "user"], Policy]] = {
    "user": ("user", Policy()),
    "user_local": ("user", Policy(allow_insecure_urls=True)),
    "user_granted": ("user", GRANTED),
    "user_listed": ("user", LISTED),
    "operator": ("operator", Policy()),
}


def rows() -> list[Any]:
    return [row for row in VECTORS["entries"] if isinstance(row["url"], str)]


PUBLIC = "192.175.48.6"


def judge(row: Any) -> tuple[Admitted | Refused, list[tuple[str, ...] | Refused]]:
    """Run a row: the decision from the text, then the decision for each set of answers."""
    trust, policy = POLICIES[row.get("policy", "user")]
    first = judge_server(ServerSpec("Weather", row["url"], trust), policy)
    if isinstance(first, Refused) or not first.addresses_needed:
        return first, []
    return first, [judge_answers(first, answers, policy) for answers in row["dns"]]


def server(url: str, trust: Literal["operator", "user"] = "user", **rest: Any) -> ServerSpec:
    return ServerSpec("Weather", url, trust, **rest)


def test_the_vectors_are_all_there() -> None:
    assert len(VECTORS["entries"]) == 546
    assert len(rows()) == 546 - 5
    assert {row.get("policy", "user") for row in rows()} == set(POLICIES)


@pytest.mark.parametrize(
    "row", [row for row in VECTORS["entries"] if not isinstance(row["url"], str)], ids=lambda row: row["id"]
)
def test_url_that_is_no_string_becomes_no_server(row: Any) -> None:
    assert row["allowed"] is False
    found, warnings = servers_from_json(json.dumps([{"name": "Weather", "url": row["url"]}]))
    assert found == ()
    assert warnings


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["id"])
def test_vector_is_decided_as_written(row: Any) -> None:
    text, answers = judge(row)
    expected: list[bool] = row.get("attempts", [row["allowed"]])
    refused_by_text = isinstance(text, Refused)
    got = [
        not refused_by_text and not (answers and isinstance(answers[turn], Refused)) for turn in range(len(expected))
    ]
    assert got == expected
    if row.get("max_lookups") == 0:
        assert refused_by_text
    if "asks" in row and not refused_by_text:
        assert text.lookup_name == row["asks"]


@pytest.mark.parametrize("row", [row for row in rows() if "dials" in row], ids=lambda row: row["id"])
def test_only_vetted_addresses_are_given_out_to_dial(row: Any) -> None:
    _, answers = judge(row)
    given_out = [answer[0] for answer in answers if not isinstance(answer, Refused)]
    assert given_out[: len(row["dials"])] == row["dials"]


@pytest.mark.parametrize("row", VECTORS["ranges"], ids=lambda row: row["cidr"])
def test_ranges_end_where_they_should(row: Any) -> None:
    network = ip_network(row["cidr"])
    first, last = int(network.network_address), int(network.broadcast_address)

    def allowed(number: int) -> bool:
        host = str(type(network.network_address)(number))
        url = f"https://[{host}]/mcp" if network.version == 6 else f"https://{host}/mcp"
        by_text = isinstance(judge_server(server(url), Policy()), Admitted)
        name = judge_server(server("https://mcp.example.com/mcp"), Policy())
        assert isinstance(name, Admitted)
        by_answer = not isinstance(judge_answers(name, [host], Policy()), Refused)
        assert by_text == by_answer
        return by_text

    assert not allowed(first)
    assert not allowed(last)
    if row["open_below"]:
        assert allowed(first - 1)
    if row["open_above"]:
        assert allowed(last + 1)


@pytest.mark.parametrize(
    ("address", "reach"),
    [
        ("192.175.48.6", "public"),
        ("2620:4f:8000::6", "public"),
        ("127.9.9.9", "loopback"),
        ("::1", "loopback"),
        ("172.31.0.1", "private"),
        ("100.64.0.1", "internal"),
        ("fd12::1", "internal"),
        ("fd00:ec2::23", "never"),
        ("fd00:c1::a9fe:a9fe", "never"),
        ("64:ff9b::192.175.48.6", "public"),
        ("64:ff9b::10.0.0.1", "private"),
        ("64:ff9b::169.254.169.254", "never"),
        ("2620:4f:8000::6%eth0", "never"),
        ("127.1", "never"),
        ("0300.0.0.1", "never"),
        ("not an address", "never"),
        ("", "never"),
    ],
)
def test_each_address_has_its_reach(address: str, reach: str) -> None:
    assert reach_from_address(address) == reach


@pytest.mark.parametrize(
    ("plain", "answers", "accepted"),
    [
        (False, ["192.175.48.6"], False),
        (True, ["192.175.48.6"], True),
        (True, ["192.175.48.6", "10.0.0.1"], True),
        (True, ["169.254.169.254"], False),
    ],
)
def test_an_operator_may_choose_plain_http_to_a_public_host(plain: bool, answers: list[str], accepted: bool) -> None:
    entry = server("http://mcp.example.com/mcp", "operator", allow_plain_http_public=plain)
    admitted = judge_server(entry, Policy())
    assert isinstance(admitted, Admitted)
    assert isinstance(judge_answers(admitted, answers, Policy()), tuple) == accepted


def test_a_request_cannot_choose_plain_http() -> None:
    entry = server("http://mcp.example.com/mcp", allow_plain_http_public=True)
    assert isinstance(judge_server(entry, Policy()), Refused)
    local = judge_server(entry, Policy(allow_insecure_urls=True))
    assert isinstance(local, Admitted)
    assert not local.plain_http_public
    assert isinstance(judge_answers(local, ["192.175.48.6"], Policy(allow_insecure_urls=True)), Refused)


def test_with_the_local_opt_in_a_name_that_leads_inside_is_reached_on_any_port() -> None:
    policy = Policy(allow_insecure_urls=True)
    admitted = judge_server(server("http://tools.example.com:25/mcp"), policy)
    assert isinstance(admitted, Admitted)
    assert judge_answers(admitted, ["10.1.2.3", "10.1.2.3"], policy) == ("10.1.2.3",)


@pytest.mark.parametrize("host", ["redis", "foo.localhost", "localhost.localdomain", "nas.lan", "x.internal"])
def test_the_local_opt_in_adds_no_name_but_localhost(host: str) -> None:
    refusal = judge_server(server(f"http://{host}:3001/mcp"), Policy(allow_insecure_urls=True))
    assert isinstance(refusal, Refused)
    assert refusal.code == "host_refused"


@pytest.mark.parametrize(
    "host",
    [
        *("a.localdomain4", "localhost6.localdomain6", "a.localnet", "a.mail", "a.domain", "a.workgroup", "a.i2p"),
        *("home.arpa", "ipv4only.arpa", "a.metadata.goog", "a.b.internal", "A.LAN"),
    ],
)
def test_names_outside_the_public_internet_are_refused_without_a_look_up(host: str) -> None:
    refusal = judge_server(server(f"https://{host}/mcp"), Policy())
    assert isinstance(refusal, Refused)
    assert refusal.code == "host_refused"


# The Fetch standard's ports from 1024 up that speak another protocol.
OTHER_PROTOCOLS = [
    *(1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566),
    *(6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080),
]


@pytest.mark.parametrize("port", [1, 80, 442, 444, 1023, *OTHER_PROTOCOLS])
def test_ports_of_other_protocols_are_refused_to_requests_only(port: int) -> None:
    refusal = judge_server(server(f"https://mcp.example.com:{port}/"), Policy())
    assert isinstance(refusal, Refused)
    assert refusal.code == "port_refused"
    assert isinstance(judge_server(server(f"https://mcp.example.com:{port}/", "operator"), Policy()), Admitted)


def test_an_admitted_server_has_one_canonical_origin() -> None:
    admitted = judge_server(server("HTTPS://[2620:004F:8000:0000:0000:0000:0000:0006]:0443/mcp"), Policy())
    assert admitted == Admitted("https", "2620:4f:8000::6", 443, "user", addresses_needed=False)
    assert isinstance(admitted, Admitted)
    assert admitted.lookup_name == "2620:4f:8000::6"


def test_localhost_is_asked_without_the_dot_that_hosts_files_do_not_know() -> None:
    admitted = judge_server(server("http://localhost:3001/mcp"), Policy(allow_insecure_urls=True))
    assert isinstance(admitted, Admitted)
    assert admitted.lookup_name == "localhost"


@pytest.mark.parametrize(("count", "accepted"), [(32, True), (33, False)])
def test_a_server_may_carry_32_headers(count: int, accepted: bool) -> None:
    entry = server("https://mcp.example.com/", headers={f"X-{number}": Secret("v") for number in range(count)})
    assert isinstance(judge_server(entry, Policy()), Admitted) == accepted


USER, OPERATOR = "user", "operator"
DENYING = Policy(
    allow_insecure_urls=True,
    user_nets=granted_nets_from_text("10.20.0.0/16,192.175.48.0/24"),
    deny_nets=nets_from_text("10.20.9.0/24,192.175.48.6,2620:4f:8000::/48,127.0.0.0/8"),
    deny_hosts=hosts_from_text("self.example.com,.corp.example.com,10.20.8.8"),
)


@pytest.mark.parametrize("trust", [USER, OPERATOR])
@pytest.mark.parametrize(
    ("url", "answers", "accepted"),
    [
        ("https://mcp.example.com/", ["10.20.1.1"], True),
        ("https://mcp.example.com/", ["10.20.9.1"], False),
        ("https://mcp.example.com/", ["10.20.1.1", "10.20.9.1"], False),
        ("https://10.20.9.255/", [], False),
        ("https://10.20.10.0/", [], True),
        ("https://mcp.example.com/", ["192.175.48.6"], False),
        ("https://mcp.example.com/", ["192.175.48.7"], True),
        ("https://mcp.example.com/", ["64:ff9b::192.175.48.6"], False),
        ("https://mcp.example.com/", ["64:ff9b::10.20.9.9"], False),
        ("https://mcp.example.com/", ["64:ff9b::10.20.8.9"], True),
        ("https://[2620:4f:8000::6]/", [], False),
        ("http://127.0.0.1:3000/", [], False),
        ("https://self.example.com/", ["10.20.1.1"], False),
        ("https://SELF.example.com/", ["10.20.1.1"], False),
        ("https://a.self.example.com/", ["10.20.1.1"], True),
        ("https://corp.example.com/", ["10.20.1.1"], True),
        ("https://a.b.corp.example.com/", ["10.20.1.1"], False),
        ("https://10.20.8.8/", [], False),
    ],
)
def test_what_is_denied_is_so_for_both_classes_whatever_else_allows_it(
    trust: Literal["operator", "user"], url: str, answers: list[str], accepted: bool
) -> None:
    judged = judge_server(server(url, trust), DENYING)
    if isinstance(judged, Admitted) and judged.addresses_needed:
        judged = judge_answers(judged, answers, DENYING)
    assert (not isinstance(judged, Refused)) == accepted


@pytest.mark.parametrize(
    ("policy", "url", "answers", "accepted"),
    [
        (Policy(user_servers="off"), "https://mcp.example.com/", [PUBLIC], False),
        (Policy(user_servers="off", allow_insecure_urls=True), "http://localhost/", ["127.0.0.1"], False),
        (Policy(user_servers="listed"), "https://mcp.example.com/", [PUBLIC], False),
        (Policy(user_hosts=("mcp.example.com",)), "https://other.example.com/", [PUBLIC], False),
        (Policy(user_hosts=("mcp.example.com",)), "https://mcp.example.com/", [PUBLIC], True),
        (Policy(user_hosts=("mcp.example.com",)), "http://mcp.example.com/", [PUBLIC], False),
        (Policy(user_hosts=("localhost",)), "https://localhost/", ["127.0.0.1"], False),
        (Policy(user_hosts=("10.0.0.1",)), "https://10.0.0.1/", [], False),
        (
            Policy(user_hosts=(".example.com",), user_nets=GRANTED.user_nets),
            "http://a.example.com:9/",
            ["10.20.0.1"],
            True,
        ),
        (Policy(user_nets=nets_from_text("100.64.0.0/10")), "https://100.100.100.200/", [], False),
        (Policy(user_nets=nets_from_text("100.64.0.0/10")), "http://100.100.100.201:9/", [], True),
        (Policy(user_nets=nets_from_text("fc00::/7")), "http://[fd12::1]:9/", [], True),
        (Policy(user_nets=nets_from_text("fc00::/7")), "http://[fd00:ec2::254]/", [], False),
        (Policy(user_nets=nets_from_text("127.0.0.1")), "http://127.0.0.1:3000/", [], True),
        (Policy(user_nets=nets_from_text("127.0.0.1")), "http://localhost:3000/", ["127.0.0.1"], False),
        (Policy(user_nets=nets_from_text("10.0.0.0/8")), "http://redis:6379/", ["10.1.1.1"], False),
        (Policy(user_nets=nets_from_text("10.0.0.0/8")), "https://mcp.example.com/", [PUBLIC, "10.1.1.1"], True),
        (Policy(user_ports=ports_from_text("8443")), "https://mcp.example.com/", [PUBLIC], False),
        (Policy(user_ports=ports_from_text("8443")), "https://mcp.example.com:8443/", [PUBLIC], True),
        (Policy(user_ports=ports_from_text("1-65535")), "https://mcp.example.com:80/", [PUBLIC], True),
        (Policy(user_ports=ports_from_text("1-65535")), "https://mcp.example.com:22/", [PUBLIC], False),
        (Policy(user_ports=ports_from_text("22,6667")), "https://mcp.example.com:6667/", [PUBLIC], False),
    ],
)
def test_what_an_operator_allows_requests_is_what_they_reach(
    policy: Policy, url: str, answers: list[str], accepted: bool
) -> None:
    judged = judge_server(server(url), policy)
    if isinstance(judged, Admitted) and judged.addresses_needed:
        judged = judge_answers(judged, answers, policy)
    assert (not isinstance(judged, Refused)) == accepted


@pytest.mark.parametrize("user_servers", ["off", "listed", "public"])
def test_what_requests_may_bring_says_nothing_of_the_operators_servers(
    user_servers: Literal["off", "listed", "public"],
) -> None:
    policy = Policy(user_servers=user_servers, user_hosts=("a.example",), user_ports=((443, 443),))
    assert isinstance(judge_server(server("http://redis:6379/", "operator"), policy), Admitted)


@pytest.mark.parametrize(
    "row",
    [row for row in VECTORS["server_supplied_urls"] if row["field"] == "elicitation.url"],
    ids=lambda row: row["reason"],
)
def test_page_that_a_server_sends_people_to_is_judged_as_written(row: Any) -> None:
    params = {"mode": "url", "message": "Go there.", "url": row["value"], "elicitationId": "1"}
    asked = elicitation_from_params(params, server="Weather", tool_uuid=None)
    assert isinstance(asked, Elicitation) == row["allowed"]


def test_bad_headers_refuse_a_server_of_either_class() -> None:
    for trust in ("operator", "user"):
        entry = server("https://mcp.example.com/mcp", trust, headers={"Host": Secret("internal.example")})
        refusal = judge_server(entry, Policy())
        assert isinstance(refusal, Refused)
        assert refusal.code == "headers_refused"


SECRET_PLACES = [
    "https://marker-secret:marker-secret@example.com/",
    "https://marker-secret.localhost/marker-secret?key=marker-secret",
    "https://10.0.0.1/marker-secret?key=marker-secret",
    "https://example.com:22/marker-secret?key=marker-secret",
    "ftp://marker-secret.example/",
    "https://example.com/#marker-secret",
    "https://example.com/ marker-secret",
    "https://example.com:marker-secret/",
    "marker-secret",
    "https://example.com/" + "marker-secret" * 400,
    "http://marker-secret.example.com/?marker-secret",
]


@pytest.mark.parametrize("url", SECRET_PLACES)
def test_a_refusal_repeats_nothing_of_the_url(url: str) -> None:
    refusal = judge_server(server(url, headers={"X-Key": Secret("marker-secret")}), Policy())
    assert isinstance(refusal, Refused)
    assert refusal.code in get_args(RefusalCode)
    assert "marker" not in refusal.reason
    assert refusal.reason.endswith(".")


def test_lengths_at_their_limits_are_accepted() -> None:
    host = ".".join(["a" * 63] * 3 + ["b" * 61])
    assert len(host) == 253
    url = f"https://{host}/"
    for accepted in (url, url + "x" * (2048 - len(url))):
        assert isinstance(split_url(accepted), UrlParts)
    for refused in (url.replace("b", "bb", 1), url + "x" * (2049 - len(url))):
        assert isinstance(split_url(refused), Refused)


@pytest.mark.parametrize(
    ("url", "port", "path", "query"),
    [
        ("https://a.example", 443, "/", None),
        ("http://a.example/", 80, "/", None),
        ("http://a.example:443?", 443, "/", ""),
        ("https://a.example:65535/x/?a?b", 65535, "/x/", "a?b"),
    ],
)
def test_what_a_url_leaves_out_is_filled_in(url: str, port: int, path: str, query: str | None) -> None:
    parts = split_url(url)
    assert isinstance(parts, UrlParts)
    assert (parts.port, parts.path, parts.query) == (port, path, query)


def test_a_refusal_says_what_to_do_about_it() -> None:
    refusal = split_url("https://user:pass@mcp.example.com/")
    assert isinstance(refusal, Refused)
    assert "headers" in refusal.reason


LABEL = st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True)
HOST = st.lists(LABEL, min_size=1, max_size=4).map(".".join) | st.ip_addresses().map(
    lambda address: f"[{address}]" if address.version == 6 else str(address)
)
TAIL = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="\\#"), max_size=20)


@given(HOST, st.none() | st.integers(1, 65535), TAIL)
def test_the_connecting_library_agrees_on_the_origin(host: str, port: int | None, tail: str) -> None:
    url = f"https://{host}{'' if port is None else f':{port}'}/{tail}"
    parts = split_url(url)
    if isinstance(parts, UrlParts):
        library = httpx2.URL(url)
        assert library.scheme == parts.scheme
        assert (library.port or 443) == parts.port
        if parts.literal and ":" in parts.host:
            assert split_url(f"https://[{library.raw_host.decode()}]/") == split_url(f"https://[{parts.host}]/")
        else:
            assert library.raw_host.decode() == parts.host


@given(st.text())
def test_any_text_is_judged_without_an_error(text: str) -> None:
    for prefix in ("", "https://", "https://example.com:", "https://["):
        for trust in ("operator", "user"):
            assert isinstance(judge_server(server(prefix + text, trust), Policy()), Admitted | Refused)


def test_the_order_of_answers_does_not_change_the_decision() -> None:
    admitted = judge_server(server("https://mcp.example.com/mcp"), Policy())
    assert isinstance(admitted, Admitted)
    mixed = ["192.175.48.6", "2620:4f:8000::6", "10.0.0.5"]
    decisions = [judge_answers(admitted, mixed[turn:] + mixed[:turn], Policy()) for turn in range(3)]
    assert all(a == b for a, b in pairwise(decisions))
    assert isinstance(decisions[0], Refused)
