"""Thoughts at the beginning of a text are told apart from it, however both are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.messages import TextDelta
from app.upstream.thinking import ThoughtSplitter

ROWS = {
    "<think>hm</think>42": ("hm", "42"),
    " \n<think>hm\n</think>\n\n42": ("hm\n", "42"),
    "<think></think>42": ("", "42"),
    "<think>hm": ("hm", ""),
    "<think>a</thi": ("a</thi", ""),
    "<think>a</think>b<think>c</think>": ("a", "b<think>c</think>"),
    "42": ("", "42"),
    "  42": ("", "  42"),
    "<thin": ("", "<thin"),
    "<thinking>no": ("", "<thinking>no"),
    "see <think>": ("", "see <think>"),
    "<think>a < b </ c</think>d": ("a < b </ c", "d"),
}


def told(pieces: list[str]) -> tuple[str, str]:
    splitter = ThoughtSplitter()
    deltas = [delta for piece in pieces for delta in splitter.split(piece)] + splitter.rest()
    assert all(delta.text for delta in deltas)
    texts = ["".join(d.text for d in deltas if isinstance(d, TextDelta) is is_text) for is_text in (False, True)]
    return texts[0], texts[1]


@pytest.mark.parametrize(("text", "expected"), ROWS.items())
def test_thought_and_text_are_told_apart(text: str, expected: tuple[str, str]) -> None:
    assert told([text]) == expected
    assert told(list(text)) == expected


@given(st.sampled_from(list(ROWS)), st.lists(st.integers(min_value=0, max_value=40), max_size=8))
def test_any_cut_tells_the_same(text: str, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:stop] for start, stop in pairwise(edges) if stop > start]
    assert told(pieces) == ROWS[text]
