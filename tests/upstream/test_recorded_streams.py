"""Every stream that was recorded from a real server decodes to the right text, calls and ending."""

import csv
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.domain.errors import ContextLengthExceeded, RunError, UpstreamFailed, UpstreamRefused
from app.domain.messages import CallFragment, Delta, Finish, ReasoningDelta, TextDelta, Thought, Usage
from app.domain.ports import Ask
from app.upstream.chunks import ChunkDecoder
from app.upstream.endpoint import Options, open_endpoint
from tests.fakes.upstream import Answer, open_upstream
from tests.upstream.asking import model_of

pytestmark = pytest.mark.anyio

STREAMS = Path(__file__).parent / "streams"


@dataclass(frozen=True)
class Recording:
    name: str
    status: int
    content_type: str
    what: str
    """The recorder's own summary."""

    @property
    def body(self) -> bytes:
        return (STREAMS / f"{self.name}.sse").read_bytes()


@dataclass
class Heard:
    """What a reply came to; calls as `[name, arguments]` by index."""

    text: str
    calls: dict[int, list[str]]
    finish: str | None
    usage: Usage | None


def _recordings() -> list[Recording]:
    found: list[Recording] = []
    for index in sorted(STREAMS.glob("*-index.tsv")):
        prefix = index.name.removesuffix("-index.tsv")
        with index.open() as lines:
            rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
            found += [
                Recording(f"{prefix}-{row['case']}", int(row["status"]), row["content-type"], row["what"])
                for row in rows
            ]
    # Recorded apart, to have the comments that this server sends while it reads the prompt.
    found.append(Recording("llamacpp-qwen-ping", 200, "text/event-stream", "events=10 done=True finish=length"))
    return found


RECORDINGS = _recordings()
ANSWERED = [item for item in RECORDINGS if item.status == 200 and item.body]
REFUSED = [item for item in RECORDINGS if item.status != 200]
EMPTY = [item for item in RECORDINGS if item.status == 200 and not item.body]


def _read_naively(body: bytes) -> Heard:
    """Read a whole recording the plain way, as the reference."""
    text = body.decode()
    if text.startswith("{"):
        chunks = [json.loads(text)]
    else:
        lines = [line.removeprefix("data:").strip() for line in text.splitlines() if line.startswith("data:")]
        chunks = [json.loads(line) for line in lines if line != "[DONE]"]
    heard = Heard("", {}, None, None)
    for chunk in chunks:
        if counts := chunk.get("usage"):
            cached = counts.get("prompt_tokens_details", {}).get("cached_tokens", 0)
            told = (counts[f"{name}_tokens"] for name in ("prompt", "completion", "total"))
            heard.usage = Usage(*told, cached_tokens=cached)
        for choice in chunk["choices"]:
            if choice["index"] == 0:
                _add_choice(heard, choice)
    return heard


def _add_choice(heard: Heard, choice: dict[str, Any]) -> None:
    delta: dict[str, Any] = choice.get("delta") or choice.get("message") or {}
    heard.text += delta.get("content") or ""
    calls: list[dict[str, Any]] = delta.get("tool_calls") or []
    for position, call in enumerate(calls):
        entry = heard.calls.setdefault(call.get("index", position), ["", ""])
        entry[0] = call["function"].get("name") or entry[0]
        entry[1] += call["function"]["arguments"]
    heard.finish = choice.get("finish_reason") or heard.finish


def _heard(deltas: Sequence[Delta]) -> Heard:
    heard = Heard("", {}, None, None)
    for delta in deltas:
        match delta:
            case TextDelta():
                heard.text += delta.text
            case CallFragment():
                entry = heard.calls.setdefault(delta.index or 0, ["", ""])
                entry[0] = delta.name or entry[0]
                entry[1] += delta.arguments
            case Finish():
                heard.finish = delta.reason
            case Usage():
                heard.usage = delta
            case ReasoningDelta() | Thought():
                pytest.fail("none of these models reasons")
    return heard


async def _ask(recording: Recording, seed: int) -> list[Delta]:
    headers = {"Content-Type": recording.content_type}
    answer = Answer(_cut(recording.body, seed), recording.status, headers)
    async with (
        open_upstream([answer]) as upstream,
        open_endpoint(Options(base_url=upstream.url, retries=0)) as endpoint,
        model_of(endpoint).stream(Ask([{"role": "user", "content": "Hi"}]), tell=lambda _: None) as batches,
    ):
        return [delta async for batch in batches for delta in batch]


def _cut(data: bytes, seed: int) -> list[bytes]:
    random_ = random.Random(seed)  # noqa: S311 - where to cut, not a key
    places = sorted(random_.randrange(len(data) + 1) for _ in range(len(data) // 40))
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


def test_all_recordings_are_covered() -> None:
    covered = {item.name for item in RECORDINGS}
    assert covered == {path.stem for path in STREAMS.glob("*.sse")}
    assert len(ANSWERED) == 58


@pytest.mark.parametrize("recording", ANSWERED, ids=lambda item: item.name)
async def test_a_recorded_answer_is_heard_over_a_socket(recording: Recording) -> None:
    heard = _heard(await _ask(recording, seed=len(recording.what)))
    assert heard == _read_naively(recording.body)
    # The recorder's summary is a second witness.
    if chars := re.search(r"chars=(\d+)", recording.what):
        assert len(heard.text) == int(chars[1])
    if finish := re.search(r"finish=(\w+)", recording.what):
        assert heard.finish == finish[1]
    if "usage=" in recording.what:
        assert (heard.usage is not None) == ("usage=True" in recording.what)


@pytest.mark.parametrize("recording", ANSWERED, ids=lambda item: item.name)
@pytest.mark.parametrize("seed", range(3))
def test_a_recorded_answer_is_the_same_however_it_is_cut(recording: Recording, seed: int) -> None:
    decoder = ChunkDecoder()
    deltas = [delta for piece in _cut(recording.body, seed) for delta in decoder.feed(piece)] + decoder.finish()
    assert decoder.fault is None
    assert _heard(deltas) == _read_naively(recording.body)


@pytest.mark.parametrize("recording", REFUSED, ids=lambda item: item.name)
async def test_a_recorded_error_is_told_by_its_kind(recording: Recording) -> None:
    by_status: type[RunError] = UpstreamRefused if recording.status == 400 else UpstreamFailed
    expected = ContextLengthExceeded if recording.name.endswith("err-context") else by_status
    with pytest.raises(expected, match=f"answered {recording.status}") as caught:
        await _ask(recording, seed=0)
    assert type(caught.value) is expected
    if recording.content_type.startswith("application/json"):
        words = json.loads(recording.body)["error"]["message"].split()[:4]
        assert " ".join(words) in str(caught.value)


@pytest.mark.parametrize("recording", EMPTY, ids=lambda item: item.name)
async def test_a_recorded_empty_stream_is_a_failure(recording: Recording) -> None:
    with pytest.raises(UpstreamFailed, match="empty stream"):
        await _ask(recording, seed=0)
