"""Whatever holds a secret does not show it: not in a repr, not in the message of a setting that cannot be read."""

import base64
import copy
import json
from hashlib import sha256
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.schemas import InputRequest, RunRequest
from app.domain.secrets import Secret, forms_from_secret, living_secrets
from app.domain.spec import ServerSpec
from app.setting_types import SettingsError
from app.settings import Settings
from app.toolbox.callers import for_caller
from app.toolbox.grants import proxy_from_text
from app.toolbox.overlays import overlay
from app.upstream.faults import Scrub
from tests.fakes.service import USER

KEY = "zqSecret-5e1f+7/a"
OTHER = "zqSecret-Other"


def leaks(text: str) -> bool:
    return "zqSecret" in text or base64.b64encode(KEY.encode()).decode()[:20] in text


def _settings() -> Settings:
    basic = base64.b64encode(f"operator:{KEY}".encode()).decode()
    entry = {"name": "ops", "url": f"https://a.example/mcp?key={KEY}", "headers": {"Authorization": basic}}
    return Settings.for_demo(
        openai_base_url="http://127.0.0.1:9/v1",
        openai_api_key=KEY,
        hf_token=KEY,
        exa_api_key=KEY,
        mcp_servers=json.dumps([entry]),
        api_keys=f"caller:{sha256(KEY.encode()).hexdigest()}",
    )


ENTRY = {
    "name": "mine",
    "url": f"https://a.example/mcp?key={KEY}",
    "headers": {"Authorization": f"Bearer {KEY}", "X-Session": KEY},
}


def _held() -> dict[str, object]:
    """Make what holds secrets in the service."""
    settings = _settings()
    rooms = settings.rooms(one_time_key=KEY)
    (operator,) = rooms.servers.environment
    asked = RunRequest.model_validate({"messages": USER, "servers": [ENTRY]})
    spec = asked.to_spec({"messages": USER}, user_token=Secret(KEY))
    search = ServerSpec("search", "https://mcp.exa.ai/mcp", "user")
    hub = ServerSpec("hub", "https://huggingface.co/mcp?login", "user")
    with_key = overlay(search, user_token=None, forward_user_token=False, exa_api_key=Secret(KEY))
    with_token = overlay(hub, user_token=Secret(KEY), forward_user_token=True, exa_api_key=None)
    assert KEY.replace("+", "%2B").replace("/", "%2F") in with_key.url
    assert with_token.headers["Authorization"].reveal() == f"Bearer {KEY}"
    return {
        "settings": settings,
        "options of all rooms": rooms,
        "options of the endpoint": rooms.endpoint,
        "options of the toolbox": rooms.servers,
        "who may call": rooms.access,
        "what is kept out of the log": settings.secrets([operator]),
        "operator's server": operator,
        "operator's server for a caller": for_caller(operator, spec),
        "proxy": proxy_from_text(f"http://user:{OTHER}@proxy.example:3128"),
        "request": asked,
        "entry of a request": asked.servers[0],
        "run": spec,
        "user's server": spec.servers[0],
        "server with the operator's key": with_key,
        "server with the caller's token": with_token,
        "scrub of the endpoint's words": Scrub((KEY,)),
        "answer of a person": InputRequest.model_validate({"action": "accept", "content": {"a": KEY}}),
        "answer of a person inside": InputRequest(action="accept", content={"a": KEY}).to_answer(),
        "secret": Secret(KEY),
        "copy of a secret": copy.deepcopy(Secret(KEY)),
    }


HELD = _held()


@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
def test_nothing_that_holds_a_secret_shows_it(held: object) -> None:
    assert not leaks(f"{held!r} {held} {[held]}")


@pytest.mark.parametrize("value", [f"op:{KEY[:9]}@127.0.0.1:9/v1", f"127.0.0.1:9/v1?key={KEY}"])
def test_endpoint_that_would_show_a_key_in_its_address_stops_the_start(value: str) -> None:
    with pytest.raises(SettingsError, match=r"^OPENAI_BASE_URL: ") as raised:
        Settings.for_demo(openai_base_url=f"http://{value}", auth="none").rooms()
    assert not leaks(str(raised.value))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OPENAI_API_KEY", f"{KEY}\n{KEY}"),
        ("OPENAI_API_KEY", f"{KEY}é"),
        ("EXA_API_KEY", f" {KEY} {KEY}"),
        ("MCP_SERVERS", f'[{{"url": "{KEY}"'),
        ("MCP_SERVERS", f'"{KEY}"'),
        ("MODELS", f'[{{"id": "{KEY}"'),
        ("TOOLFERRY_API_KEYS", KEY),
        ("TOOLFERRY_API_KEYS", f"a:{KEY}"),
        ("TOOLFERRY_RETENTION_MS", KEY),
        ("USE_USER_TOKEN", KEY),
    ],
)
def test_setting_that_cannot_be_read_is_named_and_not_shown(name: str, value: str) -> None:

    with pytest.raises(SettingsError) as raised:
        Settings.for_demo(**{"auth": "none", name: value}).rooms()
    assert (name in str(raised.value), leaks(str(raised.value))) == (True, False)


TEXTS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=40)
SOME = st.binary(max_size=5)


@given(TEXTS, SOME, SOME)
def test_secret_is_found_in_whatever_form_libraries_write_it(value: str, before: bytes, after: bytes) -> None:
    forms = forms_from_secret(Secret(value))
    around = before + value.encode() + after
    texts = [
        value,
        quote(value),
        quote(value, safe=""),
        quote_plus(value),
        json.dumps(f"é{value}"),
        repr(f"\n{value}"),
        repr(value.encode()),
        base64.b64encode(around).decode(),
        base64.urlsafe_b64encode(around).decode(),
    ]
    assert [text for text in texts if not any(form in text for form in forms)] == []


PARTS = {
    "Bearer zqSecret-1": ["zqSecret-1"],
    "Basic " + base64.b64encode(b"user:zqSecret-1").decode(): ["zqSecret-1"],
    "sid=zqSecret-1; theme=zqSecret-2": ["zqSecret-1", "zqSecret-2"],
    'Digest response="zqSecret-1", realm="zqSecret-2"': ["zqSecret-1", "zqSecret-2"],
}


@pytest.mark.parametrize(("value", "parts"), PARTS.items(), ids=[value[:12] for value in PARTS])
def test_part_of_a_header_is_found_without_the_rest(value: str, parts: list[str]) -> None:
    forms = forms_from_secret(Secret(value))
    assert set(parts) <= set(forms)
    assert not {"Bearer", "Basic", "Digest", "sid", "theme"} & set(forms)
    assert list(forms) == sorted(forms, key=len, reverse=True)


def test_secret_that_another_equals_is_known_as_long_as_either_is_held() -> None:
    first, second = Secret("zqSecret-living"), Secret("zqSecret-living")
    assert sum(secret == first for secret in living_secrets()) == 2
    del first
    assert [secret for secret in living_secrets() if secret == second] == [second]
    del second
    assert not any(secret.reveal() == "zqSecret-living" for secret in living_secrets())


def test_secrets_of_any_characters_can_be_compared() -> None:
    assert Secret("\ud800") == Secret("\ud800")
    assert Secret("\ud800") != Secret("?")
    assert Secret("a") != "a"
