"""Train the embedded pair from nothing, stage by stage; every stage resumes from its checkpoint.

    python -m examples.tiny_vlm.train                        # everything, into profiles/pairs/tiny-llava-ov
    python -m examples.tiny_vlm.train --stage tower --role draft
    python -m examples.tiny_vlm.train --stage language --role target --target-steps 2000
    python -m examples.tiny_vlm.train --stage export --role target

`tower` teaches the vision tower dense labels, `language` aligns the projector and trains the language model
(the draft is distilled from the target), `export` writes the model folder from the newest checkpoint.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import LlavaOnevisionForConditionalGeneration, PreTrainedTokenizerFast

from examples.tiny_vlm.batches import Encoder
from examples.tiny_vlm.language import align_projector, compile_layers, init_words, train_language
from examples.tiny_vlm.loop import Plan
from examples.tiny_vlm.pair import build_model, build_tokenizer, save_folder
from examples.tiny_vlm.tower import LabelledTower, train_tower

SEED = 11
Model = LlavaOnevisionForConditionalGeneration


def tower_stage(role: str, arguments: argparse.Namespace, tokenizer: PreTrainedTokenizerFast) -> None:
    tower = build_model(role, tokenizer).model.vision_tower
    train_tower(tower, arguments.tower_steps, arguments.work / f"tower_{role}.pt", arguments.device)


def load_tower(model: Model, path: Path) -> None:
    labelled = LabelledTower(model.model.vision_tower)
    labelled.load_state_dict(torch.load(path, map_location="cpu")["module"])


def aligned_model(role: str, arguments: argparse.Namespace, tokenizer: PreTrainedTokenizerFast) -> Model:
    """A model with its trained tower and a projector that speaks in words; kept on disk once made."""
    model = build_model(role, tokenizer)
    path = arguments.work / f"aligned_{role}.pt"
    if path.exists():
        model.load_state_dict(torch.load(path))
        return model.to(arguments.device)
    load_tower(model, arguments.work / f"tower_{role}.pt")
    init_words(model, tokenizer)
    model.to(arguments.device)
    align_projector(model, tokenizer, Encoder(tokenizer), arguments.align_steps, arguments.device)
    torch.save(model.state_dict(), path)
    return model


def trained_model(role: str, arguments: argparse.Namespace, tokenizer: PreTrainedTokenizerFast) -> Model:
    model = build_model(role, tokenizer)
    state = torch.load(arguments.work / f"language_{role}.pt", map_location="cpu")
    model.load_state_dict(state["module"])
    print(f"[{role}] weights of step {state['step']}", flush=True)
    return model.to(arguments.device).eval()


def language_stage(role: str, arguments: argparse.Namespace, tokenizer: PreTrainedTokenizerFast) -> None:
    model = aligned_model(role, arguments, tokenizer)
    taught = role == "draft" and arguments.distil > 0
    teacher = trained_model("target", arguments, tokenizer) if taught else None
    for part in (model, teacher):
        if part is not None and arguments.compile:
            compile_layers(part)
    steps = arguments.target_steps if role == "target" else arguments.draft_steps
    plan = Plan(steps, arguments.muon_rate, arguments.adam_rate)
    checkpoint = arguments.work / f"language_{role}.pt"
    mix = arguments.distil if teacher is not None else 0.0
    focus = range(*arguments.focus)
    train_language(role, model, Encoder(tokenizer), plan, checkpoint, arguments.device, teacher, mix, focus)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", choices=("all", "tower", "language", "export"), default="all")
    parser.add_argument("--role", choices=("both", "target", "draft"), default="both")
    parser.add_argument("--work", type=Path, default=Path("build/tiny_vlm"), help="checkpoints")
    parser.add_argument("--out", type=Path, default=Path("profiles/pairs/tiny-llava-ov"), help="the pair's folder")
    parser.add_argument("--tower-steps", type=int, default=1100)
    parser.add_argument("--align-steps", type=int, default=600)
    parser.add_argument("--target-steps", type=int, default=1800)
    parser.add_argument("--draft-steps", type=int, default=860, help="few: the draft is meant to be weaker")
    parser.add_argument("--focus", type=int, nargs=2, default=(0, 0), help="steps on short questions only")
    parser.add_argument("--muon-rate", type=float, default=0.02)
    parser.add_argument("--adam-rate", type=float, default=2e-3)
    parser.add_argument("--distil", type=float, default=0.7, help="share of the teacher in the draft's loss")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    arguments.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    arguments.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(SEED)
    tokenizer = build_tokenizer()
    roles = ("target", "draft") if arguments.role == "both" else (arguments.role,)
    for role in roles:
        if arguments.stage in ("all", "tower"):
            tower_stage(role, arguments, tokenizer)
        if arguments.stage in ("all", "language"):
            language_stage(role, arguments, tokenizer)
        if arguments.stage in ("all", "export"):
            save_folder(arguments.out / role, trained_model(role, arguments, tokenizer).cpu(), tokenizer)


if __name__ == "__main__":
    main()
