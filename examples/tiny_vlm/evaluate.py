"""Held-out results of both models of a pair: facts per task, image swap, agreement of the draft.

    python -m examples.tiny_vlm.evaluate --pair profiles/pairs/tiny-llava-ov

The last line of the output is one JSON object. Samples come from a stream that training never draws from.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoTokenizer, LlavaOnevisionForConditionalGeneration
from transformers.utils import logging

from examples.tiny_vlm.data import MAX_NEW_TOKENS, Sample, samples
from examples.tiny_vlm.facts import score
from examples.tiny_vlm.labels import GRID
from examples.tiny_vlm.texts import LIST_FULL, fact_words
from examples.tiny_vlm.tower import normalise
from examples.tiny_vlm.world import SIDE, Pixels, Video

Model = LlavaOnevisionForConditionalGeneration
MIX = {"describe": 7, "list_json": 4, "question": 7, "chart": 3, "video": 4}
IMAGE_TOKENS = 2 * GRID * GRID + GRID
FRAME_TOKENS = (GRID // 2) ** 2


class Asker:
    """Runs a model on samples in batches of equal prompts' lengths, so that nothing is padded in front."""

    def __init__(self, folder: Path, batch: int) -> None:
        self.model: Model = LlavaOnevisionForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
        self.model.eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.batch = batch

    def prompt(self, sample: Sample, frames: int) -> list[int]:
        text = str(self.tokenizer.apply_chat_template(sample.messages, add_generation_prompt=True, tokenize=False))
        text = text.replace("<image>", "<image>" * IMAGE_TOKENS)
        text = text.replace("<video>", "<video>" * (FRAME_TOKENS * frames + 1))
        return list(self.tokenizer(text).input_ids)

    def visual(self, pictures: list[list[Pixels]], moving: bool) -> dict[str, Tensor]:
        if moving:
            return {"pixel_values_videos": torch.stack([normalise(frames) for frames in pictures])}
        # One base view and one tile; at this size both are the picture itself.
        pixels = torch.stack([normalise(frames * 2) for frames in pictures])
        return {"pixel_values": pixels, "image_sizes": torch.full((len(pictures), 2), SIDE)}

    def _groups(self, prompts: list[list[int]], all_samples: list[Sample], counts: list[int]) -> Iterable[list[int]]:
        groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for index, (prompt, sample) in enumerate(zip(prompts, all_samples, strict=True)):
            moving = isinstance(sample.world, Video)
            groups[len(prompt), moving, counts[index], MAX_NEW_TOKENS[sample.kind]].append(index)
        for group in groups.values():
            for start in range(0, len(group), self.batch):
                yield group[start : start + self.batch]

    @torch.inference_mode()
    def answer(self, asked: list[Sample], pictures: list[list[Pixels]]) -> list[list[int]]:
        """Greedy answers as token ids, end token included when it was reached."""
        prompts = [self.prompt(sample, len(frames)) for sample, frames in zip(asked, pictures, strict=True)]
        answers: list[list[int]] = [[] for _ in asked]
        end = self.tokenizer.eos_token_id
        for group in self._groups(prompts, asked, [len(frames) for frames in pictures]):
            ids = torch.tensor([prompts[index] for index in group])
            moving = isinstance(asked[group[0]].world, Video)
            limit = MAX_NEW_TOKENS[asked[group[0]].kind]
            visual = self.visual([pictures[index] for index in group], moving)
            out = self.model.generate(input_ids=ids, **visual, max_new_tokens=limit, do_sample=False)
            for index, row in zip(group, out[:, ids.shape[1] :].tolist(), strict=True):
                answers[index] = row[: row.index(end) + 1] if end in row else row
        return answers

    @torch.inference_mode()
    def greedy_under(self, sample: Sample, pictures: list[Pixels], answer: list[int]) -> list[int]:
        """The model's own greedy token at every position of a given answer."""
        prompt = self.prompt(sample, len(pictures))
        visual = self.visual([pictures], isinstance(sample.world, Video))
        logits = self.model(input_ids=torch.tensor([prompt + answer]), **visual).logits[0, len(prompt) - 1 : -1]
        return list(logits.argmax(-1).tolist())

    def text(self, answer: list[int]) -> str:
        return str(self.tokenizer.decode(answer, skip_special_tokens=True))


def accuracy(asked: list[Sample], texts: list[str]) -> dict[str, object]:
    """Shares of right facts, overall, per task and per kind of fact, and of answers without any mistake."""
    tasks: dict[str, list[bool]] = defaultdict(list)
    kinds: dict[str, list[bool]] = defaultdict(list)
    exact: dict[str, list[bool]] = defaultdict(list)
    for sample, text in zip(asked, texts, strict=True):
        right, extra = score(sample.turn, text)
        tasks[sample.turn.task] += right.values()
        exact[sample.turn.task].append(all(right.values()) and extra == 0)
        for name, value in right.items():
            kinds[name.partition("@")[0]].append(value)

    def shares(table: dict[str, list[bool]]) -> dict[str, float]:
        return {name: round(sum(values) / len(values), 4) for name, values in sorted(table.items())}

    everything = [value for values in tasks.values() for value in values]
    answers = [value for values in exact.values() for value in values]
    return {
        "facts": round(sum(everything) / len(everything), 4),
        "answers": round(sum(answers) / len(answers), 4),
        "facts_by_task": shares(tasks),
        "answers_by_task": shares(exact),
        "facts_by_kind": shares(kinds),
    }


def token_classes(asker: Asker, answer: list[int]) -> list[str]:
    """`fact` for fact words, `choice` for the word that starts a sentence, `fixed` for everything else."""
    words, classes, start = set(fact_words()), [], True
    for token in answer:
        word = str(asker.tokenizer.decode([token]))
        bare = word.strip()
        if bare in words or bare.isdigit():
            classes.append("fact")
        else:
            classes.append("choice" if start else "fixed")
        start = word.endswith(".")
    return classes


def agreement(target: Asker, draft: Asker, asked: list[Sample], answers: list[list[int]]) -> dict[str, float]:
    """How often the draft's greedy token is the target's along the target's answers, by token class."""
    table: dict[str, list[bool]] = defaultdict(list)
    for sample, answer in zip(asked, answers, strict=True):
        guesses = draft.greedy_under(sample, sample.pictures, answer)
        for name, token, guess in zip(token_classes(target, answer), answer, guesses, strict=True):
            table[name].append(token == guess)
            table["all"].append(token == guess)
            table[f"kind:{sample.kind}"].append(token == guess)
    return {name: round(sum(values) / len(values), 4) for name, values in sorted(table.items())}


def swap_test(asker: Asker, asked: list[Sample], texts: list[str]) -> dict[str, float]:
    """Ask again with the picture of another sample of the same task and form: do the answers follow it?"""
    partners: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, sample in enumerate(asked):
        if sample.turn.task in ("describe", "list_json", "chart", "video"):
            full = sample.turn.question in LIST_FULL
            partners[sample.turn.task, len(sample.pictures), full].append(index)
    chosen = [
        (a, b) for group in partners.values() for a, b in zip(group, group[1:] + group[:1], strict=True) if a != b
    ]
    swapped = asker.answer([asked[a] for a, _ in chosen], [asked[b].pictures for _, b in chosen])
    changed: list[bool] = []
    own: list[bool] = []
    other: list[bool] = []
    for (a, b), answer in zip(chosen, swapped, strict=True):
        text = asker.text(answer)
        changed.append(text != texts[a])
        own += score(asked[a].turn, text)[0].values()
        other += score(asked[b].turn, text)[0].values()
    return {
        "answers_changed": round(sum(changed) / len(changed), 4),
        "facts_of_shown_picture": round(sum(other) / len(other), 4),
        "facts_of_hidden_picture": round(sum(own) / len(own), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Score both models of a pair on held-out samples.")
    parser.add_argument("--pair", type=Path, default=Path("profiles/pairs/tiny-llava-ov"))
    parser.add_argument("--scale", type=int, default=10, help="held-out samples: 25 times this")
    parser.add_argument("--stream", default="heldout", help="name of the stream of samples")
    parser.add_argument("--kinds", nargs="*", default=[], metavar="KIND=COUNT", help="instead of the usual mix")
    parser.add_argument("--role", choices=("both", "target", "draft"), default="both")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--show", type=int, default=0, help="print this many answers")
    arguments = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    torch.set_num_threads(arguments.threads)
    mix = {kind: share * arguments.scale for kind, share in MIX.items()}
    if arguments.kinds:
        mix = {kind: int(count) for kind, _, count in (part.partition("=") for part in arguments.kinds)}
    asked = list(samples(arguments.stream, mix))
    pictures = [sample.pictures for sample in asked]
    report: dict[str, object] = {"samples": len(asked)}
    askers: dict[str, Asker] = {}
    answers: dict[str, list[list[int]]] = {}
    for role in ("target", "draft") if arguments.role == "both" else (arguments.role,):
        asker = askers[role] = Asker(arguments.pair / role, arguments.batch)
        answers[role] = asker.answer(asked, pictures)
        texts = [asker.text(answer) for answer in answers[role]]
        for sample, text in list(zip(asked, texts, strict=True))[: arguments.show]:
            print(f"{role} {sample.turn.task} {sample.turn.question}")
            print(f"  is    {text}\n  right {sample.turn.answer}")
        ended = sum(answer[-1] == asker.tokenizer.eos_token_id for answer in answers[role]) / len(asked)
        length = sum(map(len, answers[role])) / len(asked)
        report[role] = accuracy(asked, texts) | {"ended": round(ended, 4), "tokens": round(length, 1)}
        print(f"{role}: {json.dumps(report[role])}", file=sys.stderr)
        if role == "target":
            report["swap"] = swap_test(asker, asked, texts)
    if len(askers) == 2:
        report["agreement"] = agreement(askers["target"], askers["draft"], asked, answers["target"])
    print(json.dumps(report))


if __name__ == "__main__":
    main()
