"""Which demo tools a question's words ask for, and with which arguments. Pure; plain rules, no language model."""

import re
from collections.abc import Callable, Sequence

from app.domain.jsontypes import JsonObject

_ZONES = (
    "Africa/Cairo Africa/Lagos Africa/Nairobi America/Chicago America/Los_Angeles America/Mexico_City America/New_York "
    "America/Sao_Paulo America/Toronto Asia/Dubai Asia/Hong_Kong Asia/Kolkata Asia/Seoul Asia/Shanghai Asia/Singapore "
    "Asia/Tokyo Australia/Sydney Europe/Berlin Europe/Istanbul Europe/London Europe/Madrid Europe/Moscow Europe/Paris "
    "Europe/Rome Pacific/Auckland"
)
ZONE_OF_CITY = {zone.rpartition("/")[2].replace("_", " ").lower(): zone for zone in _ZONES.split()} | {
    "beijing": "Asia/Shanghai",
    "delhi": "Asia/Kolkata",
    "mumbai": "Asia/Kolkata",
    "san francisco": "America/Los_Angeles",
    "são paulo": "America/Sao_Paulo",
}

_COUNTS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9} | {
    "ten": 10,
    "twelve": 12,
    "twenty": 20,
}
_COUNT = rf"(\d{{1,9}}|{'|'.join(_COUNTS)})"
_NUMBER = r"(?<![\w.])-?\d+(?:\.\d+)?(?!\w)"
_NUMBERS = rf"({_NUMBER}(?:(?:\s*,\s*and\s+|\s*[,;]\s*|\s+and\s+|\s+){_NUMBER})*)"
_A_CHART = r"(?:bar\s+)?(?:charts?|graph|plot)\b"

_TIME = re.compile(r"\b(time|clock|hour|late|date|day)\b", re.IGNORECASE)
_CITY = re.compile(rf"\b({'|'.join(ZONE_OF_CITY)})\b", re.IGNORECASE)
_ZONE = re.compile(r"\b(?:[A-Z]\w+(?:/[A-Z][\w+-]*)+|UTC|GMT)(?!\w)")
_DICE_NOTATION = re.compile(r"\b(\d{0,9})d(\d{1,9})\b", re.IGNORECASE)
_DICE = re.compile(r"\b(dice|die|roll)\b", re.IGNORECASE)
_DICE_COUNT = re.compile(rf"\b{_COUNT}\s+(?:\S+\s+)?(?:dice|die)\b", re.IGNORECASE)
_DICE_SIDES = re.compile(rf"\b{_COUNT}[\s-]+side[sd]?\b", re.IGNORECASE)
_COUNTDOWN = re.compile(rf"\bcount(?:ing)?[\s-]?down\b(?:\s+(?:from|of|for|in))?(?:\s+{_COUNT}\b)?", re.IGNORECASE)
_CHART = re.compile(rf"\b{_A_CHART}", re.IGNORECASE)
_CHART_OF = re.compile(
    rf"\b{_A_CHART}(?::|\s+(?:of|with|for|from|showing|the|these|values?|numbers?):?)*\s+{_NUMBERS}", re.IGNORECASE
)
_AS_CHART = re.compile(rf"{_NUMBERS}\s+(?:as|in|into|on)\s+(?:a\s+)?{_A_CHART}", re.IGNORECASE)
_FAIL = re.compile(r"\bfail(s|ed|ing|ure)?\b", re.IGNORECASE)
_ASK = re.compile(r"\bask (?:me|the user)\b[\s:,]*([^.?!]*)", re.IGNORECASE)
_ROLLED = re.compile(rf"Rolled .*?: {_NUMBERS} \(total")


def wanted_calls(question: str, results: Sequence[str]) -> list[tuple[str, JsonObject]]:
    """Read all calls that a question asks for: pairs of tool and arguments, without doubles, in a fixed order.

    Args:
        question: What the user wrote.
        results: The texts of the results so far; a chart of rolled dice has to wait for them.
    """
    wanted: list[tuple[str, JsonObject]] = []
    for tool, read in _RULES:
        for arguments in read(question):
            if (tool, arguments) not in wanted:
                wanted.append((tool, arguments))
    if _CHART.search(question) and not any(tool == "chart" for tool, _ in wanted):
        # No numbers: those of the dice, once they are rolled; without dice, some.
        rolled = [_numbers(match[1]) for text in results for match in _ROLLED.finditer(text)]
        has_dice = any(tool == "dice" for tool, _ in wanted)
        wanted += [("chart", {"values": values}) for values in (rolled if has_dice else [[3, 5, 8]])]
    return wanted


def _clock(question: str) -> list[JsonObject]:
    if not _TIME.search(question):
        return []
    without_zones = _ZONE.sub(lambda match: " " * len(match[0]), question)
    found = [(match.start(), match[0]) for match in _ZONE.finditer(question)]
    found += [(match.start(), ZONE_OF_CITY[match[0].lower()]) for match in _CITY.finditer(without_zones)]
    return [{"zone": zone} for _, zone in sorted(found)] or [{"zone": "UTC"}]


def _dice(question: str) -> list[JsonObject]:
    notations = _DICE_NOTATION.findall(question)
    if notations:
        return [{"count": int(count or 1), "sides": int(sides)} for count, sides in notations]
    if not _DICE.search(question):
        return []
    return [{"count": _count(_DICE_COUNT.search(question), 1), "sides": _count(_DICE_SIDES.search(question), 6)}]


def _countdown(question: str) -> list[JsonObject]:
    return [{"seconds": _count(match, 3)} for match in _COUNTDOWN.finditer(question)]


def _chart(question: str) -> list[JsonObject]:
    lists = [match[1] for pattern in (_CHART_OF, _AS_CHART) for match in pattern.finditer(question)]
    return [{"values": _numbers(values)} for values in lists]


def _fail(question: str) -> list[JsonObject]:
    return [{}] if _FAIL.search(question) else []


def _ask(question: str) -> list[JsonObject]:
    match = _ASK.search(question)
    words = match[1].strip() if match else ""
    if words:
        return [{"question": f"{words[0].upper()}{words[1:]}?"}]
    return [{}] if match else []


_RULES: tuple[tuple[str, Callable[[str], list[JsonObject]]], ...] = (
    ("clock", _clock),
    ("dice", _dice),
    ("countdown", _countdown),
    ("chart", _chart),
    ("fail", _fail),
    ("ask", _ask),
)


def _count(match: re.Match[str] | None, default: int) -> int:
    word = match[1] if match else None
    return default if word is None else _COUNTS.get(word.lower()) or int(word)


def _numbers(text: str) -> list[float]:
    return [float(number) if "." in number else int(number) for number in re.findall(_NUMBER, text)]
