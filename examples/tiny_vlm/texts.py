"""Long answers about the synthetic worlds: descriptions and listings with free wording between the facts.

The place of a thing comes before the thing, which keeps every fact one look-up away from the words before it.
"""

from __future__ import annotations

from random import Random

from examples.tiny_vlm.questions import chart_question, exists_question, scene_question, video_question
from examples.tiny_vlm.turns import NUMBERS, ORDINALS, Turn, choose, phrase, thing_facts, thing_pieces
from examples.tiny_vlm.world import (
    BACKGROUNDS,
    COLORS,
    SHAPES,
    Chart,
    Scene,
    Video,
    World,
    cell_name,
    direction,
)

DESCRIBE = (
    "Describe the image in detail.",
    "What do you see in this picture?",
    "Please describe this scene.",
    "Give a detailed description of the image.",
    "Tell me what the picture shows.",
    "Explain what is in the image.",
)
_OPENINGS = (
    "The image shows {count} objects on a {background} background.",
    "This picture contains {count} objects placed on a {background} background.",
    "There are {count} objects here, drawn on a {background} background.",
    "In this simple scene, {count} objects are arranged on a {background} background.",
    "We are looking at {count} objects on a plain {background} background.",
)
_PLACED = (
    " In the {pos}, there is a {thing}.",
    " The {pos} holds a {thing}.",
    " At the {pos}, we find a {thing}.",
    " Look at the {pos}: a {thing} is drawn there.",
    " Then the {pos} shows a {thing}.",
)
_REMARKS = (
    " It is easy to spot.",
    " Its outline is clean and sharp.",
    " Nothing else touches it.",
    " This one catches the eye.",
)
_CLOSINGS = (
    " Overall, the picture is simple and tidy.",
    " The rest of the picture is empty.",
    " Nothing else can be seen here.",
    " All in all, this is a calm scene.",
    " Every other part of the image stays empty.",
)


def describe(rng: Random, scene: Scene) -> Turn:
    question = rng.choice(DESCRIBE)
    turn = Turn("describe", "describe", question)
    count = NUMBERS[len(scene.things)]
    turn.facts = {"count": count, "background": scene.background}
    opening = choose(rng, _OPENINGS, "opening", question)
    turn.pieces += phrase(opening, turn.facts)
    for cell, thing in scene.ordered:
        pos = cell_name(cell)
        turn.facts |= thing_facts(pos, thing)
        turn.pieces += thing_pieces(choose(rng, _PLACED, "placed", pos), pos, thing)
        if rng.random() < 0.25:
            turn.pieces += phrase(choose(rng, _REMARKS, "remark", thing.shape), {})
    turn.pieces += phrase(choose(rng, _CLOSINGS, "closing", question + scene.background), {})
    return turn


LIST_FULL = (
    "List all objects as JSON.",
    "Return a JSON list of the objects with all details.",
    "Give every object in JSON format.",
)
LIST_SHORT = (
    "List the objects as JSON without sizes.",
    "Return a short JSON list of the objects.",
    "Give position, color and shape as JSON.",
)


def list_json(rng: Random, scene: Scene) -> Turn:
    full = rng.random() < 0.5
    turn = Turn("list_json", "list_json", rng.choice(LIST_FULL if full else LIST_SHORT))
    count = str(len(scene.things))
    turn.facts = {"count": count}
    turn.pieces = [('{"count":', "fixed"), (count, "fact"), (',"objects":[', "fixed")]
    for index, (cell, thing) in enumerate(scene.ordered):
        pos = cell_name(cell)
        facts = thing_facts(pos, thing)
        turn.pieces += [('{"where":"' if index == 0 else ',{"where":"', "fixed"), (pos, "fact")]
        if full:
            turn.pieces += [('","size":"', "fixed"), (thing.size, "fact")]
        else:
            del facts[f"size@{pos}"]
        turn.pieces += [('","color":"', "fixed"), (thing.color, "fact")]
        turn.pieces += [('","shape":"', "fixed"), (thing.shape, "fact"), ('"}', "fixed")]
        turn.facts |= facts
    turn.pieces.append(("]}", "fixed"))
    return turn


CHART = (
    "Describe the chart.",
    "What does this bar chart show?",
    "Read the chart from left to right.",
    "Explain the bars in this chart.",
)
_CHART_OPENINGS = (
    "The chart shows {count} bars on a {background} background.",
    "This bar chart has {count} bars on a {background} background.",
    "There are {count} bars in the chart, on a {background} background.",
    "We see a chart with {count} bars on a {background} background.",
)
_BARS = (
    " The {rank} bar is {color} with a height of {height}.",
    " Next, the {rank} bar is {color} and it rises to {height}.",
    " For the {rank} bar, the color is {color} and the height is {height}.",
    " Then the {rank} bar, drawn in {color}, reaches {height}.",
)
_CHART_CLOSINGS = (
    " The tallest bar is {tallest} and the shortest bar is {shortest}.",
    " Overall, the tallest bar is {tallest}, while the shortest bar is {shortest}.",
    " So the tallest bar is {tallest}; the shortest bar is {shortest}.",
)


def chart_description(rng: Random, chart: Chart) -> Turn:
    question = rng.choice(CHART)
    turn = Turn("chart", "chart", question)
    count = NUMBERS[len(chart.bars)]
    turn.facts = {"count": count, "background": chart.background}
    turn.pieces += phrase(choose(rng, _CHART_OPENINGS, "chart", question), turn.facts)
    for index, (_, color, height) in enumerate(chart.bars):
        rank = ORDINALS[index]
        turn.facts |= {f"color@{rank}": color, f"height@{rank}": str(height)}
        template = choose(rng, _BARS, "bar", rank).replace("{rank}", rank)
        turn.pieces += phrase(template, {"color": color, "height": str(height)})
    ends = {"tallest": chart.tallest, "shortest": chart.shortest}
    turn.facts |= ends
    turn.pieces += phrase(choose(rng, _CHART_CLOSINGS, "ends", question), ends)
    return turn


VIDEO = (
    "Describe the video.",
    "What happens in this video?",
    "Explain what moves in the clip.",
    "Tell me what you see in the video.",
)
_VIDEO_OPENINGS = (
    "The video shows {count} on a {background} background, over {length} frames.",
    "In this short clip we see {count} on a {background} background, for {length} frames.",
    "There is motion of {count} on a {background} background; the clip has {length} frames.",
    "This clip presents {count} on a {background} background in {length} frames.",
)
_MOVES = (
    " Starting in the {pos}, a {thing} moves to the {end}, so it goes {way}.",
    " In the {pos}, a {thing} appears first; it ends in the {end}, going {way}.",
    " From the {pos}, a {thing} travels to the {end} and thus goes {way}.",
    " The {pos} holds a {thing} at first; it ends in the {end}, which means it goes {way}.",
)
_VIDEO_CLOSINGS = (
    " The motion is smooth and steady.",
    " Nothing else changes in the clip.",
    " Meanwhile, the background stays the same.",
    " No other motion can be seen.",
)


def video_description(rng: Random, video: Video) -> Turn:
    question = rng.choice(VIDEO)
    turn = Turn("video", "video", question)
    count = "one object" if len(video.things) == 1 else "two objects"
    turn.facts = {"count": count, "background": video.background, "length": NUMBERS[video.length]}
    turn.pieces += phrase(choose(rng, _VIDEO_OPENINGS, "video", question), turn.facts)
    for thing, path in zip(video.things, video.paths, strict=True):
        pos, end, way = cell_name(path[0]), cell_name(path[-1]), direction(path[0], path[-1])
        turn.facts |= thing_facts(pos, thing) | {f"end@{pos}": end, f"way@{pos}": way}
        turn.pieces += thing_pieces(choose(rng, _MOVES, "move", pos), pos, thing, end=end, way=way)
        if rng.random() < 0.2:
            turn.pieces += phrase(choose(rng, _REMARKS, "remark", thing.shape), {})
    turn.pieces += phrase(choose(rng, _VIDEO_CLOSINGS, "still", question + video.background), {})
    return turn


LONG_KINDS = ("describe", "list_json", "chart", "video")


def make_turn(rng: Random, world: World, kind: str) -> Turn:
    """One turn of a kind about a world that allows it."""
    if isinstance(world, Scene):
        if kind == "describe":
            return describe(rng, world)
        if kind == "list_json":
            return list_json(rng, world)
        return exists_question(rng, world) if rng.random() < 0.12 else scene_question(rng, world)
    if isinstance(world, Chart):
        return chart_description(rng, world) if kind == "chart" else chart_question(rng, world)
    return video_description(rng, world) if kind == "video" else video_question(rng, world)


def fact_words() -> list[str]:
    """Every word a fact can be, for the tokenizer: each gets a token of its own, with and without a space."""
    words = [*COLORS, *SHAPES, *BACKGROUNDS, *NUMBERS, *ORDINALS, "small", "large", "top", "middle", "bottom"]
    words += [
        "left",
        "center",
        "right",
        "up",
        "down",
        "diagonally",
        "nowhere",
        "empty",
        "taken",
        "one",
        "Yes",
        "No",
    ]
    return words
