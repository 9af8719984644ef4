"""Tool calls that a model wrote into its text become calls. Sans-I/O; stands between the decoder and the loop.

- A written call is one only as a whole: from its marker to the end of the reply there are only complete blocks and
  white space, all of them call offered tools, and the reply has no real call. All else stays text, as it was written.
- Text before a marker is passed on at once. From the marker on it is held, but only while it can still become a call,
  and no more than `MAX_HELD` characters of it; what else the reply brings meanwhile waits behind it.
- A reply that is nothing but a call's object, without any marker, is a call too; not where the answer is to be JSON.
- Tags that are only spoken of and code blocks are left alone. Where a call has begun and then is none, nothing after it
  is run, so that no reply is run in part. Calls are still looked for, to tell that they were not run.

Every character is read once, however the text is cut. Which model writes which form is not known here.
"""

from collections.abc import Collection, Sequence

from app.domain.messages import CallFragment, Delta, Finish, ReasoningDelta, TextDelta
from app.upstream.blocks import CALL_FENCE, SIGN, CallBlocks

MAX_HELD = 64 * 1024
"""Characters of text, and of reasoning behind it, that are held back at most."""
_MAX_READ = 4 * MAX_HELD  # of a block that is not held


class WrittenCalls:
    """Filters the deltas of one reply."""

    __slots__ = (
        "_blocks",
        "_called",
        "_fence",
        "_has_run",
        "_held",
        "_is_beginning",
        "_last",
        "_may_run",
        "_names",
        "_only_tagged",
        "_ticks",
        "left_as_text",
    )

    def __init__(self, names: Collection[str], *, only_tagged: bool = False, may_run: bool = True) -> None:
        """Begin a reply.

        Args:
            names: The tools that can be called.
            only_tagged: Bare objects and code blocks are never calls: the caller asked for a JSON answer.
            may_run: Else nothing is held or changed, and calls are only told of.
        """
        self.left_as_text: str | None = None
        """After the end: an offered tool, a written call of which was not run."""
        self._names = frozenset(names)
        self._only_tagged = only_tagged
        self._may_run = may_run  # else blocks are read only to be told, and nothing is held
        self._has_run = False
        self._called: set[str | None] = set()  # names of real calls
        self._blocks: CallBlocks | None = None
        self._held: list[Delta] = []
        self._is_beginning = True  # nothing but white space was said so far
        self._last = ""  # the last text that was not empty
        self._fence = 0  # how many backticks opened the code block in which the text stands
        self._ticks = 0  # how many backticks, from the beginning of a line, `_last` ends with; counted in code blocks

    def take(self, batch: Sequence[Delta]) -> Sequence[Delta]:
        """Give what may be passed on: the batch itself where nothing is held or changed. This is once per token."""
        if self._blocks is None and not self._is_beginning:
            last = self._last
            for delta in batch:
                if isinstance(delta, TextDelta):
                    text = delta.text
                    if "<" in text or "[" in text or "`" in text:
                        break
                    last = text or last
                elif not isinstance(delta, ReasoningDelta):
                    break
            else:
                self._last = last
                return batch
        was_held, given = bool(self._held), list[Delta]()
        for delta in batch:
            self._take_one(delta, given)
        return given if was_held or self._held or self._has_run else batch

    def rest(self, *, is_whole: bool = True) -> Sequence[Delta]:
        """Take the end of the reply and give what is held: calls where it is whole and they are, else text."""
        blocks, held, self._held = self._blocks, self._held, []
        if blocks is not None and blocks.is_complete and self._may_run and is_whole:
            self._blocks, self._has_run = None, True
            held = [delta for delta in held if not isinstance(delta, TextDelta)]
            held += [CallFragment(index, None, *call) for index, call in enumerate(blocks.calls)]
        elif blocks is not None:
            self._lose(blocks)
        self._may_run = False
        if self.left_as_text in self._called:
            # Some servers make a call of the markup and leave the markup, too.
            self.left_as_text = None
        return held

    def _take_one(self, delta: Delta, given: list[Delta]) -> None:
        if isinstance(delta, TextDelta):
            self._hear(delta.text, given)
            return
        if isinstance(delta, CallFragment):
            self._called.add(delta.name)
            self._give_up(given)
        elif isinstance(delta, Finish):
            given += self.rest()
        if self._held and self._blocks is not None:
            self._held.append(delta)
            self._blocks.size += len(delta.text) if isinstance(delta, ReasoningDelta) else 0
            if self._blocks.size > MAX_HELD:
                self._give_up(given)
        else:
            given.append(delta)

    def _hear(self, text: str, given: list[Delta]) -> None:
        at, sent, bare = 0, 0, self._bare_from(text)
        if self.left_as_text is not None and not self._may_run:
            # There is nothing more to find out.
            self._blocks, at = None, len(text)
        while at < len(text):
            blocks = self._blocks
            if blocks is None:
                at = bare if at <= bare else self._sign_from(text, at)
                if at == len(text):
                    break
                blocks = self._blocks = self._blocks_from(text, at, may_be_bare=at == bare)
                if self._may_run and sent < at:
                    given.append(TextDelta(text[sent:at]))
                    sent = at
            room = (MAX_HELD if self._may_run else _MAX_READ) - blocks.size
            at = blocks.read(text, at, min(len(text), at + room))
            if not blocks.is_prose and at == len(text):
                break
            given += self._held
            self._held = []
            if self._may_run and sent < at:
                given.append(TextDelta(text[sent:at]))
                sent = at
            if blocks.is_prose or not self._may_run:
                self._lose(blocks)
            self._may_run = self._may_run and blocks.is_prose
        if sent < len(text):
            is_held = self._may_run and self._blocks is not None and not self._blocks.is_hopeless
            (self._held if is_held else given).append(TextDelta(text[sent:]))
        self._last = text or self._last

    def _bare_from(self, text: str) -> int:
        """Find the object with which the reply begins; -1 where it does not begin with one in this text."""
        if not self._is_beginning:
            return -1
        start = len(text) - len(text.lstrip())
        self._is_beginning = start == len(text)
        return start if text.startswith("{", start) and not self._only_tagged else -1

    def _blocks_from(self, text: str, at: int, *, may_be_bare: bool) -> CallBlocks:
        is_quoted = (text[at - 1] if at else self._last[-1:]) == "`"
        return CallBlocks(self._names, is_quoted=is_quoted, may_be_bare=may_be_bare, only_tagged=self._only_tagged)

    def _give_up(self, given: list[Delta]) -> None:
        self._may_run = False
        given += self._held
        self._held = []

    def _lose(self, blocks: CallBlocks) -> None:
        self._blocks = None
        self._fence, self._ticks = blocks.fence, 0
        if not blocks.is_quoted:
            self.left_as_text = self.left_as_text or blocks.named
            self._may_run = self._may_run and not blocks.is_begun
        # Of what begins with the next marker a part is passed on already.
        self._may_run = self._may_run and not blocks.next_marker
        if blocks.next_marker:
            self._blocks = CallBlocks(self._names, is_quoted=False, only_tagged=self._only_tagged)
            self._blocks.read(blocks.next_marker, 0, len(blocks.next_marker))

    def _sign_from(self, text: str, at: int) -> int:
        """Find what may be a marker or the fence of a call; the length of the text where there is none."""
        while at < len(text):
            if self._fence:
                at = self._end_of_fence(text, at)
                continue
            found = SIGN.search(text, at)
            if found is None:
                break
            start, at = found.span()
            if text[start] != "`":
                return start
            if start == 0 and self._last[-1:] not in ("", "\n"):
                continue
            if at == len(text) or (not self._only_tagged and CALL_FENCE.match(text, at)):
                return start
            self._fence = at - start
        return len(text)

    def _end_of_fence(self, text: str, at: int) -> int:
        """Go on to the end of the code block in which the text stands, or of the text."""
        fence, before = self._fence, self._last[-1:]
        ticks = self._ticks if before == "`" else 0
        if at == 0 and (ticks or before == "\n"):
            run = len(text) - len(text.lstrip("`"))
            if ticks + run >= fence:
                self._fence = 0
                return run
            if run == len(text):
                self._ticks = ticks + run
                return run
        found = text.find("\n" + "`" * fence, max(0, at - 1))
        if found >= 0:
            self._fence = 0
            return found + 1 + fence
        line = text.rstrip("`")
        self._ticks = len(text) - len(line) if line.endswith("\n") else 0
        return len(text)
