"""One question to the endpoint over a real socket, and all that came of it."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from app.domain.errors import (
    RunError,
)
from app.domain.events import Notice, Retrying, RouterMetadata
from app.domain.messages import Delta, Finish, TextDelta
from app.domain.ports import Ask, ModelFacts
from app.domain.secrets import Secret
from app.domain.spec import RunSpec
from app.upstream.asking import Candidate, Lessons, RunModel
from app.upstream.endpoint import Endpoint, Options, open_endpoint
from tests.fakes.upstream import (
    FakeUpstream,
    Script,
    end,
    open_upstream,
    stream,
    text,
)

QUICK = Options(backoff_seconds=0.001)
GOOD = stream(text("Hi"), end())
HI: list[Delta] = [TextDelta("Hi"), Finish("stop")]


@dataclass
class Asked:
    """What one request to the model came to."""

    deltas: list[Delta] = field(default_factory=list[Delta])
    told: list[Retrying | Notice | RouterMetadata] = field(default_factory=list[Retrying | Notice | RouterMetadata])
    error: RunError | None = None

    @property
    def delays(self) -> list[float]:
        return [item.delay for item in self.told if isinstance(item, Retrying)]


def model_of(endpoint: Endpoint, spec: RunSpec | None = None) -> RunModel:
    """Make the model `m` ready, of which nothing is known."""
    return RunModel(endpoint, Lessons(), [Candidate(ModelFacts("m"))], spec or RunSpec(messages=()))


async def ask(
    endpoint: Endpoint,
    *,
    content: str = "Hello",
    token: str | None = None,
    until: Callable[[Asked], bool] | None = None,
) -> Asked:
    """Ask once and hear all, or until something holds."""
    asked = Asked()
    spec = RunSpec(messages=(), user_token=Secret(token) if token else None)
    model = model_of(endpoint, spec)
    try:
        async with model.stream(Ask([{"role": "user", "content": content}]), asked.told.append) as batches:
            async for batch in batches:
                assert batch
                asked.deltas += batch
                if until is not None and until(asked):
                    break
    except RunError as error:
        asked.error = error
    return asked


@asynccontextmanager
async def serving(script: Script, options: Options = QUICK) -> AsyncGenerator[tuple[FakeUpstream, Endpoint]]:
    async with (
        open_upstream(script) as upstream,
        open_endpoint(replace(options, base_url=upstream.url)) as endpoint,
    ):
        yield upstream, endpoint


async def ask_once(script: Script, options: Options = QUICK) -> Asked:
    async with serving(script, options) as (_, endpoint):
        return await ask(endpoint)
