"""Seeded samples of the synthetic world, and the calibration set that ships with the pair.

    python -m examples.tiny_vlm.data --calibration profiles/pairs/tiny-llava-ov
    python -m examples.tiny_vlm.data --scene examples/tiny_vlm/scene.png

The streams `train`, `heldout` and `calibration` are seeded by name: no seed is ever shared.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from PIL import Image

from examples.tiny_vlm.texts import make_turn
from examples.tiny_vlm.turns import Turn
from examples.tiny_vlm.world import (
    Chart,
    Pixels,
    Scene,
    Thing,
    Video,
    World,
    draw,
    make_chart,
    make_scene,
    make_video,
)

MAX_NEW_TOKENS = {"describe": 128, "list_json": 128, "question": 24, "chart": 128, "video": 96}
CALIBRATION_MIX = {"describe": 84, "list_json": 48, "question": 36, "chart": 36, "video": 36}
SHORT_VIDEO_SHARE = 0.2
HARD = frozenset(("color_of", "shape_of", "where", "exists", "count_color", "height_of", "video_start", "video_end"))


@dataclass(frozen=True)
class Sample:
    """One picture or video with one question about it."""

    name: str
    world: World
    turn: Turn

    @property
    def kind(self) -> str:
        return self.turn.kind

    @property
    def pictures(self) -> list[Pixels]:
        return draw(self.world)

    @property
    def messages(self) -> list[dict[str, object]]:
        medium = "video" if isinstance(self.world, Video) else "image"
        content = [{"type": medium}, {"type": "text", "text": self.turn.question}]
        return [{"role": "user", "content": content}]


def make_world(rng: Random) -> World:
    """A world as training sees it: mostly scenes."""
    return rng.choices((make_scene, make_chart, make_video), weights=(4, 3, 3))[0](rng)


def make_pack(rng: Random, shorts: int, longs: bool = True) -> tuple[World, list[Turn]]:
    """A world with several turns about it, each of which is to be answered from the picture alone."""
    world = make_world(rng)
    kinds = {Scene: ["describe", "list_json"], Chart: ["chart"], Video: ["video"]}[type(world)]
    turns = [make_turn(rng, world, kind) for kind in rng.sample(kinds, len(kinds))] if longs else []
    questions = [make_turn(rng, world, "question") for _ in range(shorts)]
    # A pack rarely has room for all of them: the look-ups that are learned last go first.
    return world, turns + sorted(questions, key=lambda turn: turn.task not in HARD)


def make_sample(stream: str, index: int, kind: str) -> Sample:
    """Sample `index` of a stream."""
    rng = Random(f"{stream}/{index}/{kind}")
    world: World
    if kind in ("describe", "list_json"):
        world = make_scene(rng)
    elif kind == "chart":
        world = make_chart(rng)
    elif kind == "video":
        world = make_video(rng)
        kind = "question" if rng.random() < SHORT_VIDEO_SHARE else "video"
    else:
        world = make_chart(rng) if rng.random() < 0.3 else make_scene(rng)
    return Sample(f"{stream}-{index:04d}", world, make_turn(rng, world, kind))


def samples(stream: str, mix: dict[str, int]) -> Iterator[Sample]:
    """A mixed sequence with exactly the counts of `mix`, in a seeded order."""
    kinds = [kind for kind, count in mix.items() for _ in range(count)]
    Random(f"{stream}/order").shuffle(kinds)
    for index, kind in enumerate(kinds):
        yield make_sample(stream, index, kind)


def write_calibration(folder: Path) -> int:
    """Write `calibration.jsonl` and its pictures; returns the number of bytes."""
    pictures = folder / "calibration"
    shutil.rmtree(pictures, ignore_errors=True)
    pictures.mkdir(parents=True)
    lines, size = [], 0
    for number, sample in enumerate(samples("calibration", CALIBRATION_MIX)):
        frames = sample.pictures
        moving = isinstance(sample.world, Video)
        names = [f"calibration/{number:04d}{f'_f{index}' if moving else ''}.png" for index in range(len(frames))]
        for name, pixels in zip(names, frames, strict=True):
            Image.fromarray(pixels).save(folder / name, optimize=True)
            size += (folder / name).stat().st_size
        record = {
            "id": sample.name,
            **({"video": names} if moving else {"images": names}),
            "messages": sample.messages,
            "max_new_tokens": MAX_NEW_TOKENS[sample.kind],
            "kind": sample.kind,
            "reference": sample.turn.answer,
            "facts": sample.turn.facts,
        }
        lines.append(json.dumps(record, ensure_ascii=False))
    text = "\n".join(lines) + "\n"
    (folder / "calibration.jsonl").write_text(text, encoding="utf-8")
    return size + len(text.encode())


def write_scene(path: Path) -> None:
    """The picture of the README: four pixels for each of the model's, so that it shrinks without a trace."""
    things = {
        (0, 0): Thing("large", "red", "heart"),
        (0, 2): Thing("small", "yellow", "star"),
        (1, 1): Thing("large", "blue", "ring"),
        (2, 0): Thing("large", "green", "triangle"),
        (2, 2): Thing("large", "purple", "cross"),
    }
    pixels = draw(Scene("beige", things))[0].repeat(4, axis=0).repeat(4, axis=1)
    Image.fromarray(pixels).save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the calibration set and the example picture.")
    parser.add_argument("--calibration", type=Path, help="folder of the pair")
    parser.add_argument("--scene", type=Path, help="where to write the example picture")
    arguments = parser.parse_args()
    if arguments.calibration:
        print(f"calibration set: {write_calibration(arguments.calibration) / 1e6:.2f} MB")
    if arguments.scene:
        write_scene(arguments.scene)


if __name__ == "__main__":
    main()
