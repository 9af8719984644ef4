"""What goes when a conversation is longer than the model takes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.run.context import excess_from_error, with_shorter_results

SAID = [
    ("prompt 90000, window 65536", 0.27),
    ("This model's maximum context length is 8192 tokens. However, your messages resulted in 10,240 tokens.", 0.2),
    ("prompt is too long: 210_000 tokens > 200_000 maximum", 0.05),
    ("the request exceeds the available context size", 0.4),
    ("too long, by 12 tokens", 0.4),
    ("limit 4096", 0.4),
]


@pytest.mark.parametrize(("text", "least"), SAID)
def test_what_must_go_is_read_from_the_endpoints_numbers_with_a_margin(text: str, least: float) -> None:
    assert least < excess_from_error(text) < least + 0.15


def tool(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "c1", "content": content, **fields}


def test_results_are_shortened_from_the_newest_on_until_enough_is_gone() -> None:
    messages = [{"role": "user", "content": "Hi"}, tool("a" * 9000), tool("b" * 3000), tool("c" * 3000)]
    shorter = with_shorter_results(messages, 0.2)
    assert list(shorter[:2]) == messages[:2]
    assert [len(message["content"]) < 3000 for message in shorter[2:]] == [True, True]
    removed = sum(
        len(before["content"]) - len(after["content"]) for before, after in zip(messages, shorter, strict=True)
    )
    assert 0.18 * 15_000 < removed < 0.22 * 15_000


def test_the_beginning_and_the_end_of_a_result_stay_and_the_notice_counts_what_is_gone() -> None:
    (short,) = with_shorter_results([tool("begin" + "x" * 9000 + "end")], 0.9)
    text = short["content"]
    assert text.startswith("begin")
    assert text.endswith("end")
    left_out = int("".join(filter(str.isdigit, text)))
    assert text.count("x") + left_out + len("begin" + "end") == 9008
    assert short["tool_call_id"] == "c1"


@pytest.mark.parametrize(
    "messages",
    [[], [{"role": "user", "content": "x" * 9000}], [tool("x" * 900)], [tool(None), tool(["x"])], [tool("x" * 1100)]],
)
def test_where_nothing_can_go_all_stays(messages: list[Any]) -> None:
    assert list(with_shorter_results(messages, 0.9)) == messages


@given(st.lists(st.tuples(st.sampled_from(["user", "tool"]), st.integers(0, 5000))), st.floats(0, 1))
def test_nothing_but_tool_texts_changes_and_none_grows(sizes: list[tuple[str, int]], excess: float) -> None:
    messages = [{"role": role, "content": "y" * size} for role, size in sizes]
    for before, after in zip(messages, with_shorter_results(messages, excess), strict=True):
        assert len(after["content"]) <= len(before["content"])
        assert before["role"] == "tool" or before == after
