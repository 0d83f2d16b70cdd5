"""Dense labels: what the vision tower is taught to know about every patch, before any language is involved.

Besides what is drawn on a patch (colour, shape, size) the labels say where the patch is and how it relates to
the rest of the picture (which thing comes next in reading order, how many share its colour, which bar is the
tallest). Every label is also a *symbol*: the projector is first fitted so that an image token starts as the
sum of the embeddings of the words it stands for, which turns reading facts into look-ups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.tiny_vlm.turns import NUMBERS, ORDINALS
from examples.tiny_vlm.world import (
    BACKGROUNDS,
    CELLS,
    COLORS,
    COLUMNS,
    MAX_HEIGHT,
    ROWS,
    SHAPES,
    SIZES,
    Chart,
    Scene,
    World,
)

GRID = 6
NONE = "none"
IGNORE = -1


@dataclass(frozen=True)
class Label:
    """One labelled property: its values as words; the symbols of those not the patch's own are rotated."""

    name: str
    values: tuple[str, ...]
    own: bool = False


_NUMBERS, _COLORS = tuple(NUMBERS), tuple(COLORS)
LABELS = (
    Label("source", ("scene", "chart", "frame")),
    Label("background", tuple(BACKGROUNDS), own=True),
    Label("row", ROWS, own=True),
    Label("column", COLUMNS, own=True),
    Label("size", (NONE, *SIZES), own=True),
    Label("color", (NONE, *_COLORS), own=True),
    Label("shape", (NONE, *SHAPES), own=True),
    Label("count", _NUMBERS),
    Label("same_color", _NUMBERS),
    Label("next_row", (NONE, *ROWS)),
    Label("next_column", (NONE, *COLUMNS)),
    Label("first_row", ROWS),
    Label("first_column", COLUMNS),
    Label("rank", (NONE, *ORDINALS), own=True),
    Label("height", (NONE, *(str(height) for height in range(1, MAX_HEIGHT + 1))), own=True),
    Label("tallest", _COLORS),
    Label("shortest", _COLORS),
    Label("frame", (*ORDINALS,)),
    Label("last", ("earlier", "last")),
    Label("length", _NUMBERS),
)
NAMES = tuple(label.name for label in LABELS)
Dense = NDArray[np.int64]


def _fill(dense: Dense, name: str, value: str, where: tuple[slice, slice] | None = None) -> None:
    label = NAMES.index(name)
    target = dense[label] if where is None else dense[label][where]
    target[:] = LABELS[label].values.index(value)


def _blank(source: str, background: str) -> Dense:
    dense = np.full((len(LABELS), GRID, GRID), IGNORE, dtype=np.int64)
    _fill(dense, "source", source)
    _fill(dense, "background", background)
    for name in ("size", "color", "shape", "rank", "height"):
        _fill(dense, name, NONE)
    for row, column in CELLS:
        where = (slice(2 * row, 2 * row + 2), slice(2 * column, 2 * column + 2))
        _fill(dense, "row", ROWS[row], where)
        _fill(dense, "column", COLUMNS[column], where)
    return dense


def _scene_labels(scene: Scene, source: str) -> Dense:
    dense = _blank(source, scene.background)
    ordered = scene.ordered
    colors = [thing.color for _, thing in ordered]
    _fill(dense, "count", NUMBERS[len(ordered)])
    _fill(dense, "first_row", ROWS[ordered[0][0][0]])
    _fill(dense, "first_column", COLUMNS[ordered[0][0][1]])
    for index, ((row, column), thing) in enumerate(ordered):
        where = (slice(2 * row, 2 * row + 2), slice(2 * column, 2 * column + 2))
        _fill(dense, "size", thing.size, where)
        _fill(dense, "color", thing.color, where)
        _fill(dense, "shape", thing.shape, where)
        _fill(dense, "same_color", NUMBERS[colors.count(thing.color)], where)
        last = index + 1 == len(ordered)
        _fill(dense, "next_row", NONE if last else ROWS[ordered[index + 1][0][0]], where)
        _fill(dense, "next_column", NONE if last else COLUMNS[ordered[index + 1][0][1]], where)
    return dense


def _chart_labels(chart: Chart) -> Dense:
    dense = _blank("chart", chart.background)
    _fill(dense, "count", NUMBERS[len(chart.bars)])
    _fill(dense, "tallest", chart.tallest)
    _fill(dense, "shortest", chart.shortest)
    for index, (column, color, height) in enumerate(chart.bars):
        where = (slice(GRID - height, GRID), slice(column, column + 1))
        _fill(dense, "color", color, where)
        _fill(dense, "rank", ORDINALS[index], where)
        _fill(dense, "height", str(height), where)
    return dense


def dense_labels(world: World) -> list[Dense]:
    """Label indices `[label, row, column]` of every picture that `draw` gives; IGNORE where undefined."""
    if isinstance(world, Scene):
        return [_scene_labels(world, "scene")]
    if isinstance(world, Chart):
        return [_chart_labels(world)]
    frames = []
    for index in range(world.length):
        dense = _scene_labels(world.frame(index), "frame")
        _fill(dense, "frame", ORDINALS[index])
        _fill(dense, "last", "last" if index + 1 == world.length else "earlier")
        _fill(dense, "length", NUMBERS[world.length])
        frames.append(dense)
    return frames
