"""Checks that need only a pair's small files: tokenizers, templates, processors, positions. Seconds, no weights.

Every check is a function of target and draft that returns its verdict. `STATIC_CHECKS` is the list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from profiles.errors import BadInput
from runtime.model_side import ModelSide
from runtime.pair import check_same_tokens
from tuner.findings import Verdict, failed, passed, skipped, warned

StaticCheck = Callable[[ModelSide, ModelSide], Verdict]
SHOWN_CHARACTERS = 24
"""Characters of a rendered conversation that are shown after its first difference."""


def check_tokenizers(target: ModelSide, draft: ModelSide) -> Verdict:
    """Drafted ids are verified as they are, so every id must be the same token on both sides."""
    try:
        check_same_tokens(target.tokenizer.get_vocab(), draft.tokenizer.get_vocab())
    except BadInput as error:
        return failed(str(error))
    return passed(f"{len(target.tokens)} ids are the same tokens on both sides")


def check_padding(target: ModelSide, draft: ModelSide) -> Verdict:
    """Heads may be padded differently beyond the tokenizer; ids that only one side has are never proposed."""
    for side in (target, draft):
        last = max(side.tokens)
        if last >= side.head_rows:
            return failed(
                f"every token id must have a row in the head; the tokenizer goes up to {last}, the {side.role} has "
                f"{side.head_rows} rows"
            )
    shared, longer = sorted((target.head_rows, draft.head_rows))
    if shared == longer:
        heads = "the target's head has" if draft.derived else "both heads have"
        return passed(f"{heads} {shared} rows for {len(target.tokens)} tokens")
    wider = target if target.head_rows == longer else draft
    return passed(
        f"padded differently ({target.head_rows} rows in the target, {draft.head_rows} in the draft): ids {shared} to "
        f"{longer - 1}, which only the {wider.role} has, are never proposed"
    )


def check_special_tokens(target: ModelSide, draft: ModelSide) -> Verdict:
    """A special token that another id stands for is written wrongly into the draft's prompts."""
    ours, theirs = target.special_tokens(), draft.special_tokens()
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            return warned(
                f"special tokens should be the same; '{name}' is id {ours.get(name)} in the target and "
                f"{theirs.get(name)} in the draft"
            )
    named = ", ".join(f"{name} {i}" for name, i in sorted(ours.items()))
    return passed(f"the same on both sides: {named}" if named else "neither side names one besides its end")


def check_placeholders(target: ModelSide, draft: ModelSide) -> Verdict:
    """The target's prompt feeds both models, so both must find picture and video features at the same ids."""
    ours, theirs = target.placeholders(), draft.placeholders()
    for side in (target, draft):
        for kind, expected in side.placeholders().items():
            written = getattr(side.processor, f"{kind}_token_id", None)
            if written is not None and written != expected:
                return failed(
                    f"the {kind} placeholder must be one id; the {side.role}'s processor writes {written}, its model "
                    f"looks for {expected}"
                )
    for kind in sorted(ours.keys() | theirs.keys()):
        if ours.get(kind) != theirs.get(kind):
            return failed(
                f"the {kind} placeholder must be the same id; it is {ours.get(kind)} in the target and "
                f"{theirs.get(kind)} in the draft"
            )
    if not ours:
        return skipped("a text-only pair has no placeholders")
    where = "as the target's processor writes them" if draft.derived else "the same on both sides"
    return passed(f"{where}: " + ", ".join(f"{kind} {i}" for kind, i in ours.items()))


def check_ends(target: ModelSide, draft: ModelSide) -> Verdict:
    """The target's ids end an output; a draft with other ones never proposes the end."""
    if not target.eos_ids:
        return failed("the target names no end-of-sequence token; no output would end before its limit")
    unknown = frozenset(i for i in target.eos_ids if i not in target.tokens)
    if unknown:
        return failed(f"an end must be a token; ids {sorted(unknown)} are not in the tokenizer")
    both = f"the target ends at {target.named(target.eos_ids)}, the draft at {draft.named(draft.eos_ids)}"
    if target.eos_ids == draft.eos_ids:
        who = "the target ends" if draft.derived else "both sides end"
        return passed(f"{who} at {target.named(target.eos_ids)}")
    if target.eos_ids & draft.eos_ids:
        return warned(f"end-of-sequence ids should be the same; {both}")
    return failed(f"end-of-sequence ids must overlap; {both}")


def check_chat_templates(target: ModelSide, draft: ModelSide) -> Verdict:
    """Both models read what the target's template writes; a draft trained on another format is fed a foreign one."""
    messages = conversation(with_picture=target.processor is not None)
    texts = []
    for side in (target, draft):
        try:
            texts.append(side.render(messages))
        except Exception as error:  # whatever a template may raise: it is code of the model's publisher
            return failed(f"the {side.role}'s chat template cannot render two turns: {error}")
    ours, theirs = texts
    if ours is None:
        return failed("the target has no chat template; messages cannot be turned into a prompt")
    if theirs is None:
        return warned("the draft has no chat template of its own; it reads what the target's writes")
    if ours == theirs:
        same = "" if draft.derived else " the same"
        return passed(f"a conversation of {len(messages)} messages renders{same}, {len(ours)} characters")
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    return warned(
        f"a conversation should render the same; from character {at} on it is "
        f"{ours[at : at + SHOWN_CHARACTERS]!r} in the target and {theirs[at : at + SHOWN_CHARACTERS]!r} in the draft"
    )


def conversation(with_picture: bool) -> list[dict[str, Any]]:
    """The fixed conversation that templates are compared on: two user turns around an answer."""

    def said(role: str, text: str) -> dict[str, Any]:
        return {"role": role, "content": [{"type": "text", "text": text}]}

    messages = [said("user", "What is this?"), said("assistant", "A test."), said("user", "Are you sure?")]
    if with_picture:
        messages[0]["content"].insert(0, {"type": "image"})
    return messages


def check_processors(target: ModelSide, draft: ModelSide) -> Verdict:
    """Both models are fed the pixels and placeholders of the target's processor, unless the draft's reads by other
    rules: then the draft has a prompt of its own."""
    ours, theirs = target.reading_rules(), draft.reading_rules()
    if not ours:
        return skipped("the target reads text only")
    if not theirs:
        return failed("the target reads pictures, the draft reads text only")
    for name in {**ours, **theirs}:
        if ours.get(name) == theirs.get(name):
            continue
        values = f"'{name}' is {ours.get(name)!r} in the target and {theirs.get(name)!r} in the draft"
        if name.startswith(("tower ", "model ")):
            return failed(f"both models are fed what the target's processor makes; {values}")
        return warned(f"the draft reads pictures by rules of its own, so each request is read twice; {values}")
    shown = ("size", "patch_size", "tower patch_size", "image_grid_pinpoints")
    return passed("the same on both sides: " + ", ".join(f"{k} {ours[k]}" for k in shown if ours.get(k)))


def check_rope(target: ModelSide, draft: ModelSide) -> Verdict:
    """Each model rotates by its own rule, so a difference is no error; a draft converted with a wrong rule is, and
    shows as acceptance that falls with the context."""
    ours, theirs = target.rope(), draft.rope()
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            return warned(
                f"rotary embeddings differ; '{name}' is {ours.get(name)} in the target and {theirs.get(name)} in the "
                "draft: right when both were trained so, else acceptance falls with the context"
            )
    return passed("the same on both sides: " + ", ".join(f"{k} {v}" for k, v in ours.items()))


def check_positions(target: ModelSide, draft: ModelSide) -> Verdict:
    """A draft with a shorter window bounds the requests of the pair."""
    ours, theirs = target.max_positions, draft.max_positions
    if theirs >= ours:
        return passed(f"{theirs} positions in the draft cover the target's {ours}")
    return warned(
        f"the draft's window should cover the target's, got {theirs} < {ours} positions: from context {theirs} on "
        "nothing can be drafted; prompt, new tokens and tree depth must stay within it"
    )


def check_attention(target: ModelSide, draft: ModelSide) -> Verdict:
    """A tree mask must reach every earlier row."""
    for side in (target, draft):
        other = side.layer_types - {"full_attention"}
        if other:
            return failed(
                f"every layer must attend to all earlier positions; the {side.role} has {', '.join(sorted(other))}"
            )
    return passed("every layer attends to all earlier positions")


STATIC_CHECKS: dict[str, StaticCheck] = {
    "tokenizers": check_tokenizers,
    "vocabulary padding": check_padding,
    "special tokens": check_special_tokens,
    "placeholders": check_placeholders,
    "end of sequence": check_ends,
    "chat templates": check_chat_templates,
    "processors": check_processors,
    "rotary embedding": check_rope,
    "maximal positions": check_positions,
    "attention": check_attention,
}
COMPARISONS = ("tokenizers", "special tokens", "processors", "rotary embedding", "maximal positions")
"""Checks that only compare the two sides: nothing to say of a draft that is described by the target's own files."""
