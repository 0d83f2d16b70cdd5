"""Turns of conversation: a question, and an answer made of pieces of known class.

An answer is a list of pieces: `fixed` (the wording is forced), `choice` (the first word of a phrase that was
drawn among several) or `fact` (must be read from the picture). The draw depends a little on the question and
on the picture, so that no wording is always the best guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random

from examples.tiny_vlm.world import Thing

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")

Piece = tuple[str, str]


@dataclass
class Turn:
    """One question with its answer; `facts` is what an answer must get right, by name."""

    kind: str
    task: str
    question: str
    pieces: list[Piece] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def answer(self) -> str:
        return "".join(text for text, _ in self.pieces)


@cache
def _weights(slot: str, context: str, count: int) -> tuple[float, ...]:
    """How likely each wording of a slot is in a context: fixed for good, uneven, never negligible."""
    taste = Random(f"{slot}|{context}")
    return tuple(2.718 ** (1.1 * taste.gauss(0, 1)) for _ in range(count))


def choose(rng: Random, options: Sequence[str], slot: str, context: str) -> str:
    return rng.choices(options, weights=_weights(slot, context, len(options)))[0]


def phrase(template: str, facts: dict[str, str], free: bool = True) -> list[Piece]:
    """Cut `In the {pos}, …` into pieces; the first word of a free phrase is the choice."""
    pieces: list[Piece] = []
    rest = template
    while rest:
        head, brace, tail = rest.partition("{")
        if head:
            pieces.append((head, "fixed"))
        if not brace:
            break
        name, _, rest = tail.partition("}")
        pieces.append((facts[name], "fact"))
    if free and pieces[0][1] == "fixed":
        lead, text = "", pieces[0][0]
        if text.startswith(" "):
            lead, text = " ", text[1:]
        word, space, remainder = text.partition(" ")
        pieces[0] = (space + remainder, "fixed")
        pieces.insert(0, (lead + word, "choice"))
    return [piece for piece in pieces if piece[0]]


def thing_pieces(template: str, pos: str, thing: Thing, free: bool = True, **more: str) -> list[Piece]:
    """A phrase about a thing in its place."""
    return phrase(template, {"pos": pos, "thing": thing.name, **more}, free)


def thing_facts(pos: str, thing: Thing) -> dict[str, str]:
    return {f"size@{pos}": thing.size, f"color@{pos}": thing.color, f"shape@{pos}": thing.shape}


def short(task: str, question: str, template: str, free: bool = False, **facts: str) -> Turn:
    return Turn("question", task, question, phrase(template, facts, free), dict(facts))
