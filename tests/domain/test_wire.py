"""Events become one line of valid JSON, whatever is in them."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.events import Notice, ReasoningToken, Token, ToolProgress
from app.domain.secrets import Secret
from app.domain.spec import ServerSpec
from app.domain.wire import json_from_event

ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=()), max_size=40)


@given(ANY_TEXT)
def test_token_events_are_what_their_data_says_on_one_line(text: str) -> None:
    for event in (Token(text), ReasoningToken(text)):
        line = json_from_event(event)
        assert b"\n" not in line
        assert b"\r" not in line
        read = json.loads(line)
        assert {**read, "token": ""} == {**event.data(), "token": ""}
        assert read["token"] == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def test_non_ascii_is_written_as_it_is() -> None:
    assert json_from_event(Token("café 😀")) == '{"type":"stream","token":"café 😀"}'.encode()


@given(st.dictionaries(ANY_TEXT, ANY_TEXT | st.floats() | st.lists(st.floats())))
def test_any_event_is_valid_json(about: dict[str, object]) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads(json_from_event(Notice("c", "m", about)), parse_constant=refuse)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_know_become_null(odd: float) -> None:
    assert json.loads(json_from_event(ToolProgress("u", odd)))["progress"] is None


def test_secrets_do_not_show_in_any_repr() -> None:
    server = ServerSpec(
        name="x", url="https://a.example/mcp?key=SECRET1", trust="user", headers={"Authorization": Secret("SECRET2")}
    )
    shown = f"{server!r} {server} {server.headers} {Secret('SECRET3')!s}"
    assert "SECRET" not in shown
    assert server.headers["Authorization"].reveal() == "SECRET2"
