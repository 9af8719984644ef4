"""How deep a body nests is told without parsing it, and told right."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.api.body import _STRINGS, _is_deeper
from app.domain.jsontypes import is_deeper

TEXTS = st.text(alphabet='[]{}"\\a\u2200', max_size=4)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=20,
)


@given(VALUES, st.integers(min_value=1, max_value=6), st.booleans())
def test_brackets_count_as_a_parser_would_and_those_in_texts_do_not(value: Any, levels: int, is_ascii: bool) -> None:
    raw = json.dumps(value, ensure_ascii=is_ascii).encode()
    assert _is_deeper(_STRINGS.sub(b"", raw), levels) is is_deeper(value, levels)
