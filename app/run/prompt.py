"""What the model is told about its tools and about the day it is. Pure; the clock is handed in."""

from collections.abc import Sequence
from datetime import datetime, tzinfo

from app.domain.messages import ToolSpec

_RULES = """\
Use a tool only when the question needs one; greetings, opinions and what you know for certain need none.
Make calls that do not depend on each other together, in one reply; make a call that needs another's result after it.
Write search queries of a few precise words, and add the year {year} where the answer may change over time.
Answer from the tool results and give their links; never make up a result, a number or a link, and say so when a tool \
failed or found nothing.
When a tool made an image and gave its address, show it inline as a Markdown image."""

CLOSING = """\
No more tools can be called in this answer. Answer the user now from what the conversation and the tool results hold, \
and say what could not be found out."""

NUDGE = "Your last reply was empty. Answer now, in plain text, from what you know and from the tool results above."


def tool_prompt(tools: Sequence[ToolSpec], *, now: datetime, zone: tzinfo | None, image_count: int = 0) -> str:
    """Tell the model its tools, the date and time, and how to use them.

    Args:
        tools: What is offered; must not be empty.
        now: The present moment, aware of its zone.
        zone: The user's zone; None shows the time in UTC and says so.
        image_count: How many images the user has attached.
    """
    local = now.astimezone(zone) if zone else now
    lines = [
        f"You can call these tools: {', '.join(tool.name for tool in tools)}.",
        _date_line(local, is_users=zone is not None),
        _RULES.format(year=local.year),
    ]
    if image_count:
        named = "image_1" if image_count == 1 else f"image_1 to image_{image_count}"
        lines.append(
            f"The user has attached {image_count} image(s), called {named} in order. To hand one to a tool, "
            "give its name, for example image_1, as the argument image, image_url or input_image; never write the data."
        )
    return "\n".join(lines)


def _date_line(local: datetime, *, is_users: bool) -> str:
    offset = local.strftime("%z")
    zone = f"{local.tzname()}, UTC{offset[:3]}:{offset[3:]}"
    whose = "for the user" if is_users else "in UTC; the user's time zone is not known"
    return f"It is {local:%A}, {local.day} {local:%B %Y}, {local:%H:%M} ({zone}) {whose}."
