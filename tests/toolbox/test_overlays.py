import pytest

from app.domain.secrets import Secret
from app.domain.spec import ServerSpec
from app.toolbox.overlays import overlay

TOKEN = Secret("hf_token")
KEY = Secret("exa key&1")
LOGIN = "https://huggingface.co/mcp?login"


def overlaid(
    url: str,
    headers: dict[str, str] | None = None,
    token: Secret | None = TOKEN,
    *,
    forward: bool = True,
    key: Secret | None = KEY,
) -> tuple[str, dict[str, str]]:
    own = {name: Secret(value) for name, value in (headers or {}).items()}
    server = overlay(
        ServerSpec("S", url, "user", headers=own), user_token=token, forward_user_token=forward, exa_api_key=key
    )
    return server.url, {name: value.reveal() for name, value in server.headers.items()}


@pytest.mark.parametrize("url", [LOGIN, "HTTPS://HuggingFace.co/mcp?login", "https://huggingface.co:443/mcp?login"])
def test_the_callers_token_goes_to_the_login_url(url: str) -> None:
    assert overlaid(url, {"X-A": "a"}) == (url, {"X-A": "a", "Authorization": "Bearer hf_token"})


@pytest.mark.parametrize(
    "url",
    [
        "https://huggingface.co/mcp",
        "https://huggingface.co/mcp?",
        "https://huggingface.co/mcp?login=1",
        "https://huggingface.co/mcp?login&x=1",
        "https://huggingface.co/mcp?LOGIN",
        "https://huggingface.co/mcp/?login",
        "https://huggingface.co/MCP?login",
        "https://huggingface.co/x/../mcp?login",
        "https://huggingface.co/%6dcp?login",
        "https://huggingface.co?login",
        "http://huggingface.co/mcp?login",
        "https://huggingface.co:8443/mcp?login",
        "https://huggingface.co./mcp?login",
        "https://www.huggingface.co/mcp?login",
        "https://huggingface.co.evil.example/mcp?login",
        "https://evilhuggingface.co/mcp?login",
        "https://huggingface.co@evil.example/mcp?login",
        "https://evil.example/https://huggingface.co/mcp?login",
        "https://evil.example\\@huggingface.co/mcp?login",
        "https://huggingface.co/mcp?login#x",
        "https://mcp.exa.ai.evil.example/mcp",
        "https://evil.example/mcp.exa.ai",
        "http://mcp.exa.ai/mcp",
        "https://mcp.exa.ai:8443/mcp",
        "https://api.exa.ai/mcp",
        "https://x.mcp.exa.ai/mcp",
        "https://mcp.exa.ai@evil.example/mcp",
        "not a url",
    ],
)
def test_no_credential_goes_anywhere_else(url: str) -> None:
    assert overlaid(url) == (url, {})


@pytest.mark.parametrize("name", ["Authorization", "authorization", "AUTHORIZATION"])
@pytest.mark.parametrize("url", [LOGIN, "https://mcp.exa.ai/mcp"])
def test_an_explicit_credential_is_never_replaced_or_added_to(url: str, name: str) -> None:
    assert overlaid(url, {name: "Bearer own"}) == (url, {name: "Bearer own"})


def test_a_token_is_not_forwarded_unless_that_is_switched_on() -> None:
    assert overlaid(LOGIN, forward=False) == (LOGIN, {})


@pytest.mark.parametrize("token", [None, Secret(""), Secret("  "), Secret("a\r\nX-B: c"), Secret("tökén")])
def test_a_token_that_is_none_is_not_sent(token: Secret | None) -> None:
    assert overlaid(LOGIN, token=token) == (LOGIN, {})


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://mcp.exa.ai/mcp", "https://mcp.exa.ai/mcp?exaApiKey=exa%20key%261"),
        ("https://mcp.exa.ai", "https://mcp.exa.ai?exaApiKey=exa%20key%261"),
        ("https://MCP.exa.ai/mcp?", "https://MCP.exa.ai/mcp?exaApiKey=exa%20key%261"),
        ("https://mcp.exa.ai/mcp?tools=a", "https://mcp.exa.ai/mcp?tools=a&exaApiKey=exa%20key%261"),
        ("https://mcp.exa.ai/mcp?tools=a&", "https://mcp.exa.ai/mcp?tools=a&exaApiKey=exa%20key%261"),
        ("https://mcp.exa.ai/mcp?exaApiKey=own", "https://mcp.exa.ai/mcp?exaApiKey=own"),
        ("https://mcp.exa.ai/mcp?exaApiKey=", "https://mcp.exa.ai/mcp?exaApiKey="),
        ("https://mcp.exa.ai/mcp?a=1&exa%41piKey=own", "https://mcp.exa.ai/mcp?a=1&exa%41piKey=own"),
        ("https://mcp.exa.ai/mcp?a=exaApiKey", "https://mcp.exa.ai/mcp?a=exaApiKey&exaApiKey=exa%20key%261"),
    ],
)
def test_the_exa_key_is_added_once_and_never_over_an_own_one(url: str, expected: str) -> None:
    assert overlaid(url) == (expected, {})


@pytest.mark.parametrize("key", [None, Secret("")])
def test_without_a_key_nothing_is_added(key: Secret | None) -> None:
    assert overlaid("https://mcp.exa.ai/mcp", key=key) == ("https://mcp.exa.ai/mcp", {})


def test_an_own_key_header_keeps_the_operators_key_away() -> None:
    assert overlaid("https://mcp.exa.ai/mcp", {"X-Api-Key": "own"})[0] == "https://mcp.exa.ai/mcp"
