"""The synthetic world: seeded scenes, bar charts and short videos on an 84 x 84 canvas, and their drawing.

Everything is aligned to the 14-pixel patches of the vision tower: an object fills one cell of a 3 x 3 grid
(2 x 2 patches), a bar is one patch wide and whole patches high, and a video frame carries a thin segmented
progress bar along its bottom edge, from which the frame's number and the video's length can be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

Pixels = NDArray[np.uint8]
Cell = tuple[int, int]

SIDE, PATCH, CELL = 84, 14, 28
COLORS: dict[str, tuple[int, int, int]] = {
    "red": (215, 35, 40),
    "orange": (245, 135, 25),
    "yellow": (240, 215, 45),
    "green": (45, 150, 65),
    "cyan": (60, 205, 215),
    "blue": (40, 75, 210),
    "purple": (125, 55, 175),
    "pink": (245, 125, 190),
}
BACKGROUNDS: dict[str, tuple[int, int, int]] = {
    "white": (252, 252, 252),
    "gray": (150, 150, 150),
    "black": (18, 18, 18),
    "beige": (238, 224, 190),
}
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "ring", "star", "heart")
SIZES = ("small", "large")
ROWS = ("top", "middle", "bottom")
COLUMNS = ("left", "center", "right")
CELLS: tuple[Cell, ...] = tuple((row, column) for row in range(3) for column in range(3))
MAX_HEIGHT = 5
LIT, UNLIT = (255, 0, 90), (90, 90, 110)


def cell_name(cell: Cell) -> str:
    """`(0, 2)` -> `top right`."""
    return f"{ROWS[cell[0]]} {COLUMNS[cell[1]]}"


@dataclass(frozen=True)
class Thing:
    """One coloured shape."""

    size: str
    color: str
    shape: str

    @property
    def name(self) -> str:
        return f"{self.size} {self.color} {self.shape}"


@dataclass(frozen=True)
class Scene:
    """A still picture: things in cells."""

    background: str
    things: dict[Cell, Thing]

    @property
    def ordered(self) -> list[tuple[Cell, Thing]]:
        """Reading order: row by row, left to right."""
        return sorted(self.things.items())


@dataclass(frozen=True)
class Chart:
    """A bar chart: (patch column, colour, height in patches) from left to right; one tallest, one lowest."""

    background: str
    bars: tuple[tuple[int, str, int], ...]

    @property
    def tallest(self) -> str:
        return max(self.bars, key=lambda bar: bar[2])[1]

    @property
    def shortest(self) -> str:
        return min(self.bars, key=lambda bar: bar[2])[1]


@dataclass(frozen=True)
class Video:
    """Things that move in straight lines; `paths[i]` holds the cell of thing i in every frame."""

    background: str
    things: tuple[Thing, ...]
    paths: tuple[tuple[Cell, ...], ...]

    @property
    def length(self) -> int:
        return len(self.paths[0])

    def frame(self, index: int) -> Scene:
        cells = {path[index]: thing for thing, path in zip(self.things, self.paths, strict=True)}
        return Scene(self.background, cells)


World = Scene | Chart | Video


def direction(start: Cell, end: Cell) -> str:
    """The word for a straight move between two cells."""
    down, right = end[0] - start[0], end[1] - start[1]
    if down and right:
        return "diagonally"
    if down:
        return "down" if down > 0 else "up"
    if right:
        return "right" if right > 0 else "left"
    return "nowhere"


def make_thing(rng: Random) -> Thing:
    return Thing(rng.choice(SIZES), rng.choice(tuple(COLORS)), rng.choice(SHAPES))


def make_scene(rng: Random) -> Scene:
    """A scene without two things of the same colour and shape; few colours are favoured now and then."""
    count = rng.choices(range(2, 7), weights=(1, 3, 4, 4, 2))[0]
    palette = rng.sample(tuple(COLORS), 3) if rng.random() < 0.3 else list(COLORS)
    things: dict[Cell, Thing] = {}
    for cell in rng.sample(CELLS, count):
        taken = {(thing.color, thing.shape) for thing in things.values()}
        free = [(color, shape) for color in palette for shape in SHAPES if (color, shape) not in taken]
        things[cell] = Thing(rng.choice(SIZES), *rng.choice(free))
    return Scene(rng.choice(tuple(BACKGROUNDS)), things)


def make_chart(rng: Random) -> Chart:
    count = rng.randint(3, 6)
    heights = [rng.randint(1, MAX_HEIGHT) for _ in range(count)]
    while heights.count(max(heights)) > 1 or heights.count(min(heights)) > 1:
        heights = [rng.randint(1, MAX_HEIGHT) for _ in range(count)]
    columns = sorted(rng.sample(range(6), count))
    colors = rng.sample(tuple(COLORS), count)
    return Chart(rng.choice(tuple(BACKGROUNDS)), tuple(zip(columns, colors, heights, strict=True)))


def _straight_path(rng: Random, length: int) -> tuple[Cell, ...]:
    while True:
        start, end = rng.choice(CELLS), rng.choice(CELLS)
        down, right = end[0] - start[0], end[1] - start[1]
        if down == 0 or right == 0 or abs(down) == abs(right):
            break
    steps = [index / (length - 1) for index in range(length)]
    return tuple((round(start[0] + down * step), round(start[1] + right * step)) for step in steps)


def make_video(rng: Random) -> Video:
    length, count = rng.randint(4, 6), rng.choice((1, 2, 2))
    paths = [_straight_path(rng, length)]
    while len(paths) < count:
        path = _straight_path(rng, length)
        if all(a != b for a, b in zip(path, paths[0], strict=True)):
            paths.append(path)
    paths.sort()
    things = [make_thing(rng)]
    while len(things) < count:
        thing = make_thing(rng)
        if thing.color != things[0].color and thing.shape != things[0].shape:
            things.append(thing)
    return Video(rng.choice(tuple(BACKGROUNDS)), tuple(things), tuple(paths))


@cache
def sprite(shape: str, size: str) -> NDArray[np.float32]:
    """The coverage mask of a shape within its cell, antialiased by drawing it eight times too large."""
    zoom, reach = 8, 12.0 if size == "large" else 7.0
    image = Image.new("L", (CELL * zoom, CELL * zoom))
    pen = ImageDraw.Draw(image)
    middle, radius = CELL * zoom / 2, reach * zoom

    def at(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
        return [(middle + x * radius, middle + y * radius) for x, y in points]

    if shape in ("circle", "ring"):
        pen.ellipse(at([(-1, -1), (1, 1)]), fill=255)
        if shape == "ring":
            pen.ellipse(at([(-0.5, -0.5), (0.5, 0.5)]), fill=0)
    elif shape == "square":
        pen.rectangle(at([(-0.9, -0.9), (0.9, 0.9)]), fill=255)
    elif shape == "triangle":
        pen.polygon(at([(0, -1), (1, 0.9), (-1, 0.9)]), fill=255)
    elif shape == "diamond":
        pen.polygon(at([(0, -1), (0.8, 0), (0, 1), (-0.8, 0)]), fill=255)
    elif shape == "cross":
        pen.rectangle(at([(-0.33, -1), (0.33, 1)]), fill=255)
        pen.rectangle(at([(-1, -0.33), (1, 0.33)]), fill=255)
    elif shape == "star":
        tips = [(1.0 if k % 2 == 0 else 0.42, np.pi * (k / 5 - 0.5)) for k in range(10)]
        pen.polygon(at([(r * float(np.cos(a)), r * float(np.sin(a))) for r, a in tips]), fill=255)
    else:
        pen.ellipse(at([(-1, -0.85), (0.05, 0.2)]), fill=255)
        pen.ellipse(at([(-0.05, -0.85), (1, 0.2)]), fill=255)
        pen.polygon(at([(-0.94, -0.1), (0.94, -0.1), (0, 1)]), fill=255)
    small = image.resize((CELL, CELL), Image.Resampling.BOX)
    return np.asarray(small, dtype=np.float32)[..., None] / 255


def draw_scene(scene: Scene) -> Pixels:
    canvas = np.empty((SIDE, SIDE, 3), dtype=np.float32)
    canvas[:] = BACKGROUNDS[scene.background]
    for (row, column), thing in scene.things.items():
        region = canvas[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL]
        mask = sprite(thing.shape, thing.size)
        region += mask * (np.array(COLORS[thing.color], dtype=np.float32) - region)
    return np.clip(canvas.round(), 0, 255).astype(np.uint8)


def draw_chart(chart: Chart) -> Pixels:
    canvas = np.empty((SIDE, SIDE, 3), dtype=np.uint8)
    canvas[:] = BACKGROUNDS[chart.background]
    for column, color, height in chart.bars:
        left = column * PATCH
        canvas[SIDE - height * PATCH :, left + 1 : left + PATCH - 1] = COLORS[color]
    return canvas


def draw_frame(video: Video, index: int) -> Pixels:
    """One frame with its progress bar: `length` segments, the first `index + 1` of them lit."""
    canvas = draw_scene(video.frame(index))
    edges = np.linspace(0, SIDE, video.length + 1).round().astype(int)
    for segment in range(video.length):
        inside = slice(edges[segment] + 1, edges[segment + 1] - 1)
        canvas[SIDE - 2 :, inside] = LIT if segment <= index else UNLIT
    return canvas


def draw(world: World) -> list[Pixels]:
    """The picture of a scene or chart, or every frame of a video."""
    if isinstance(world, Video):
        return [draw_frame(world, index) for index in range(world.length)]
    return [draw_scene(world) if isinstance(world, Scene) else draw_chart(world)]
