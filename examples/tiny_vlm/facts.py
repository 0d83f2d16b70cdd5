"""Reading facts back out of an answer, so that it is scored fact by fact and not by its wording."""

from __future__ import annotations

import json
import re

from examples.tiny_vlm.turns import NUMBERS, ORDINALS, Turn
from examples.tiny_vlm.world import BACKGROUNDS, COLORS, COLUMNS, ROWS, SHAPES, SIZES


def _any(words: tuple[str, ...]) -> str:
    return f"({'|'.join(words)})"


_POS = f"(?:{'|'.join(ROWS)}) (?:{'|'.join(COLUMNS)})"
_COLOR, _NUMBER = _any(tuple(COLORS)), _any(NUMBERS)
_THING = f"a {_any(SIZES)} {_COLOR} {_any(SHAPES)}"
_COUNT = re.compile(rf"\b{_NUMBER} (?:objects|bars)\b")
_BACKGROUND = re.compile(rf"\b{_any(tuple(BACKGROUNDS))} background")
_PLACED = re.compile(rf"({_POS})\b[^.]*?\b{_THING}")
_BAR = re.compile(rf"\b{_any(ORDINALS)} bar\b[^.;]*?\b{_COLOR}\b[^.;]*?\b(\d)")
_MOVED = re.compile(rf"({_POS})\b[^.]*?\b{_THING}\b[^.]*?({_POS})[^.]*?\b(?:goes|going) (\w+)")


def _things(text: str) -> dict[str, str]:
    facts: dict[str, str] = {}
    for pos, size, color, shape in _PLACED.findall(text):
        facts |= {f"size@{pos}": size, f"color@{pos}": color, f"shape@{pos}": shape}
    return facts


def _json(text: str) -> dict[str, str]:
    try:
        listing = json.loads(text)
        facts = {"count": str(listing["count"])}
        for entry in listing["objects"]:
            pos = entry["where"]
            facts |= {f"{name}@{pos}": str(value) for name, value in entry.items() if name != "where"}
        return facts
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _chart(text: str) -> dict[str, str]:
    facts: dict[str, str] = {}
    for rank, color, height in _BAR.findall(text):
        facts |= {f"color@{rank}": color, f"height@{rank}": height}
    for end in ("tallest", "shortest"):
        found = re.search(rf"\b{end} bar is {_COLOR}", text)
        if found:
            facts[end] = found[1]
    return facts


def _video(text: str) -> dict[str, str]:
    facts = _things(text)
    for pos, _, _, _, end, way in _MOVED.findall(text):
        facts |= {f"end@{pos}": end, f"way@{pos}": way}
    count = re.search(r"\b(one object|two objects)\b", text)
    length = re.search(rf"\b{_NUMBER} frames", text)
    facts |= {"count": count[1]} if count else {}
    return facts | ({"length": length[1]} if length else {})


def read_facts(turn: Turn, text: str) -> dict[str, str]:
    """The facts that an answer to this turn states."""
    if turn.task not in ("describe", "list_json", "chart", "video"):
        # A short answer states a fact when it holds its words; the rest of it is the question's own wording.
        return {name: value for name, value in turn.facts.items() if re.search(rf"\b{value}\b", text)}
    if turn.task == "list_json":
        return _json(text)
    facts = {"describe": _things, "chart": _chart, "video": _video}[turn.task](text)
    count, background = _COUNT.search(text), _BACKGROUND.search(text)
    if count and turn.task != "video":
        facts["count"] = count[1]
    return facts | ({"background": background[1]} if background else {})


def score(turn: Turn, text: str) -> tuple[dict[str, bool], int]:
    """Which of the turn's facts the answer has right, and how many facts it states that are not so."""
    stated = read_facts(turn, text)
    right = {name: stated.get(name) == value for name, value in turn.facts.items()}
    return right, sum(name not in turn.facts for name in stated)
