"""Short questions about scenes, charts and videos, each with an answer of one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from examples.tiny_vlm.turns import NUMBERS, ORDINALS, Turn, phrase, short
from examples.tiny_vlm.world import CELLS, COLORS, SHAPES, Chart, Scene, Video, cell_name


def _unique(values: Sequence[str]) -> list[str]:
    return [value for value in values if values.count(value) == 1]


def scene_question(rng: Random, scene: Scene) -> Turn:
    things = list(scene.things.values())
    cell, thing = rng.choice(scene.ordered)
    pos, kind = cell_name(cell), rng.randrange(8)
    if kind == 0:
        question = rng.choice((f"What is in the {pos}?", f"Which object is at the {pos}?"))
        facts = {"size": thing.size, "color": thing.color, "shape": thing.shape}
        template = rng.choice((f"In the {pos} there is a {{thing}}.", f"The {pos} shows a {{thing}}."))
        return Turn("question", "what_at", question, phrase(template, {"thing": thing.name}, True), facts)
    if kind == 1:
        free = [cell_name(other) for other in CELLS if other not in scene.things]
        pos = rng.choice(free + [cell_name(other) for other in rng.sample(list(scene.things), 2)])
        found = "taken" if pos not in free else "empty"
        return short("empty", f"Is the {pos} empty or taken?", f"The {pos} is {{state}}.", state=found)
    if kind == 2:
        shapes = _unique([other.shape for other in things])
        if shapes:
            shape = rng.choice(shapes)
            color = next(other.color for other in things if other.shape == shape)
            question = rng.choice((f"What color is the {shape}?", f"Which color does the {shape} have?"))
            return short("color_of", question, f"The {shape} is {{color}}.", color=color)
    if kind == 3:
        colors = _unique([other.color for other in things])
        if colors:
            color = rng.choice(colors)
            shape = next(other.shape for other in things if other.color == color)
            question = rng.choice((f"Which shape is {color}?", f"What is the {color} object?"))
            return short("shape_of", question, f"The {color} object is a {{shape}}.", shape=shape)
    if kind == 4:
        question = rng.choice(("How many objects are there?", "Count the objects."))
        return short("count", question, "There are {count} objects.", count=NUMBERS[len(things)])
    if kind == 5:
        color = rng.choice([other.color for other in things] + [rng.choice(tuple(COLORS))])
        count = NUMBERS[sum(other.color == color for other in things)]
        template = f"The number of {color} objects is {{count}}."
        return short("count_color", f"How many {color} objects are there?", template, count=count)
    if kind == 6:
        question = rng.choice(("What color is the background?", "Which background does the picture have?"))
        return short("background", question, "The background is {background}.", background=scene.background)
    name = f"{thing.color} {thing.shape}"
    question = rng.choice((f"Where is the {name}?", f"Find the {name}."))
    return short("where", question, f"The {name} is in the {{pos}}.", pos=cell_name(cell))


def exists_question(rng: Random, scene: Scene) -> Turn:
    """`Is there a red circle?`: yes and no are equally likely; half of the absent ones differ in one word."""
    here = {(thing.color, thing.shape) for thing in scene.things.values()}
    color, shape = rng.choice(sorted(here))
    if rng.random() < 0.5:
        return short("exists", f"Is there a {color} {shape}?", f"{{exists}}, there is a {color} {shape}.", exists="Yes")
    while (color, shape) in here:
        if rng.random() < 0.5:
            color = rng.choice(tuple(COLORS))
        else:
            shape = rng.choice(SHAPES)
    return short("exists", f"Is there a {color} {shape}?", f"{{exists}}, there is no {color} {shape}.", exists="No")


def chart_question(rng: Random, chart: Chart) -> Turn:
    index = rng.randrange(len(chart.bars))
    _, color, height = chart.bars[index]
    kind, rank = rng.randrange(5), ORDINALS[index]
    if kind == 0:
        question = rng.choice((f"How high is the {color} bar?", f"What is the height of the {color} bar?"))
        return short("height_of", question, f"The {color} bar has a height of {{height}}.", height=str(height))
    if kind == 1:
        return short("bar_color", f"What color is the {rank} bar?", f"The {rank} bar is {{color}}.", color=color)
    if kind == 2:
        count = NUMBERS[len(chart.bars)]
        return short("bar_count", "How many bars are there?", "There are {count} bars.", count=count)
    if kind == 3:
        return short("tallest", "Which bar is the tallest?", "The tallest bar is {color}.", color=chart.tallest)
    return short("shortest", "Which bar is the shortest?", "The shortest bar is {color}.", color=chart.shortest)


def video_question(rng: Random, video: Video) -> Turn:
    index = rng.randrange(len(video.things))
    thing, path = video.things[index], video.paths[index]
    name, kind = f"{thing.color} {thing.shape}", rng.randrange(4)
    if kind == 0:
        end = cell_name(path[-1])
        turn = short("video_end", f"Where does the {name} end?", f"The {name} ends in the {{end}}.", end=end)
    elif kind == 1:
        start = cell_name(path[0])
        question = f"Where does the {name} start?"
        turn = short("video_start", question, f"The {name} starts in the {{start}}.", start=start)
    elif kind == 2:
        count = NUMBERS[video.length]
        turn = short("frames", "How many frames does the clip have?", "The clip has {length} frames.", length=count)
    else:
        background = video.background
        turn = short("video_background", "What color is the background?", "The background is {bg}.", bg=background)
    turn.kind = "video"
    return turn
