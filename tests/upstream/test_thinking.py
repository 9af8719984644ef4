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
    "<think>a</think><think>b</think>42": ("ab", "42"),
    "<think>a</think>\n\n<think>b</think>\n42": ("ab", "42"),
    "<think>a</think>\n <thi": ("a", " <thi"),
    "<think>a</think> \n42": ("a", " \n42"),
    "</think>42": ("", "</think>42"),
    "42": ("", "42"),
    "  42": ("", "  42"),
    "<thin": ("", "<thin"),
    "<thinking>no": ("", "<thinking>no"),
    "see <think>": ("", "see <think>"),
    "<think>a < b </ c</think>d": ("a < b </ c", "d"),
}


def told(pieces: list[str], splitter: ThoughtSplitter | None = None) -> tuple[str, str]:
    splitter = splitter or ThoughtSplitter()
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


HEARD = {
    "a tag that closes nothing": ("</think>\n\n42", "", "42", ""),
    "white space before it": ("\n</think>42", "", "42", ""),
    "only the tag": ("</think>", "", "", ""),
    "half of it": ("</thi", "", "</thi", ""),
    "a thought after it": ("</think>\n<think>b</think>42", "b", "42", "\n<think>b</think>"),
    "in the text": ("42</think>", "", "42</think>", ""),
    "twice": ("</think></think>42", "", "</think>42", ""),
    "another thought": ("<think>ho</think>42", "ho", "42", "<think>ho</think>"),
    "a longer thought": ("<think>hm, so</think>42", "hm, so", "42", "<think>hm, so</think>"),
}


@pytest.mark.parametrize(("text", "thought", "answer", "raw"), HEARD.values(), ids=HEARD.keys())
def test_stray_closing_tag_is_dropped_where_reasoning_came_in_its_own_field(
    text: str, thought: str, answer: str, raw: str
) -> None:
    for pieces in ([text], list(text)):
        splitter = ThoughtSplitter()
        splitter.hear("h")
        splitter.hear("m")
        assert told(pieces, splitter) == (thought, answer)
        assert splitter.raw == raw


@pytest.mark.parametrize("written", ["<think>hm</think>", "<think>\nhm\n</think>\n\n"])
def test_thought_that_came_in_its_own_field_too_is_told_once_and_kept_as_it_was_written(written: str) -> None:
    splitter = ThoughtSplitter()
    splitter.hear("hm\n")
    assert told([f"{written}42"], splitter) == ("", "42")
    assert splitter.raw == written


@pytest.mark.parametrize(
    ("pieces", "raw"),
    [
        (["<think>a</think>", "<think>b</think>\n", "42"], "<think>a</think><think>b</think>\n"),
        (["<think>a</think>\n ", "<thi"], "<think>a</think>\n"),
        (["<think>a</thi"], "<think>a</thi"),
        (["42"], ""),
        (["<thi"], ""),
    ],
)
def test_what_was_taken_out_is_kept_byte_for_byte(pieces: list[str], raw: str) -> None:
    splitter = ThoughtSplitter()
    told(pieces, splitter)
    assert splitter.raw == raw
