"""What is known of endpoints and models before they are asked."""

from typing import Any

import pytest

from app.upstream.quirks import Quirks, quirks_from_table, quirks_with

LOCAL = "http://127.0.0.1:8080/v1"

KNOWN: list[tuple[str, str, dict[str, Any]]] = [
    (LOCAL, "some-model", {}),
    ("https://example.com/openai.com/v1", "m", {}),
    (
        "https://api.openai.com/v1",
        "gpt-4o",
        {"descriptionCharacters": 1024, "schema": {"references": True, "typeLists": "keep"}},
    ),
    (LOCAL, "gpt-5-mini", {"outputLimit": "max_completion_tokens"}),
    (LOCAL, "openai/o3", {"outputLimit": "max_completion_tokens"}),
    (LOCAL, "mistralai/Mistral-Small", {"callIds": "nine"}),
    ("https://api.mistral.ai/v1", "codestral", {"callIds": "nine", "leaveOut": ["stream_options"]}),
    (LOCAL, "deepseek-ai/DeepSeek-V3.2:fast", {"reasoning": "required"}),
    ("https://api.groq.com/openai/v1", "deepseek-r1", {"reasoning": "refused"}),
    ("https://openrouter.ai/api/v1", "x/claude-4", {"reasoning": "echo", "emptyContent": "null", "callIds": "plain"}),
]


@pytest.mark.parametrize(("base_url", "model", "facts"), KNOWN)
def test_all_rows_that_fit_count_and_later_ones_win(base_url: str, model: str, facts: dict[str, Any]) -> None:
    assert quirks_from_table(base_url, model) == quirks_with(Quirks(), facts)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"stream": True}, "`stream` is not known; there are: tools, maxTools"),
    ({"refusedTools": []}, "`refusedTools` is not known"),
    ({"tools": 1}, "`tools` must be true or false"),
    ({"maxTools": True}, "`maxTools` must be a whole number from 1"),
    ({"callIds": "ten"}, "`callIds` must be one of: any, plain, nine"),
    ({"leaveOut": "seed"}, "`leaveOut` must be a list of texts"),
    ({"schema": {"patterns": None}}, "`schema.patterns` must be true or false"),
    ({"schema": True}, "`schema` must be an object"),
]


@pytest.mark.parametrize(("facts", "message"), WRONG)
def test_a_fact_that_cannot_be_is_named(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quirks_with(Quirks(), facts)


def test_every_fact_can_be_set() -> None:
    facts: dict[str, Any] = {
        "tools": False,
        "maxTools": 5,
        "descriptionCharacters": 99,
        "schema": {
            "references": True,
            "typeLists": "nullable",
            "rootCombinators": True,
            "patterns": False,
            "formats": "none",
            "constraints": False,
            "combinators": False,
            "without": ["const", "oneOf"],
        },
        "responseFormat": "without_tools",
        "toolChoice": "absent",
        "emptyContent": "absent",
        "contentParts": False,
        "images": False,
        "systemRole": False,
        "callIds": "plain",
        "toolName": "refused",
        "reasoning": "echo",
        "outputLimit": "max_tokens",
        "leaveOut": ["seed"],
    }
    changed, plain = quirks_with(Quirks(), facts), Quirks()
    assert {key for key in facts if quirks_with(plain, {key: facts[key]}) == plain} == set()
    assert changed.schema.type_lists == "nullable"
    assert changed.schema.without == {"const", "oneOf"}
    assert changed.leave_out == {"seed"}
