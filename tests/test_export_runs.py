"""Exports that can run here do: transformers and OpenVINO GenAI decode with the exported files, round for round as
replay says, and print what they accept beside the prediction."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForImageTextToText

from exports.request import ExportRequest
from exports.targets import TARGETS
from profiles.config import GridConfig
from profiles.lowering import Lowered, fixed
from profiles.policy import Tier
from profiles.registry import load_pair_spec
from profiles.sage_paper import SagePaper
from profiles.store import load_profile, write_text
from profiles.trace_schema import TraceManifest
from runtime.pair import Pair
from tests.openvino_models import convert_text_side, convert_tokenizer
from tests.strategies import VERIFY_SIZES
from tests.test_exports import OFF, SHIPPED
from tests.test_replay import costs
from tuner.calibration import Sample
from tuner.lowering_search import LoweringSearch
from tuner.replay import Replay
from tuner.timing import Budget
from tuner.trace_store import load_record
from tuner.traces import Recorder
from tuner.yardsticks.base import Arena

GRID = GridConfig(
    depth=6, widths=(1,), verify_sizes=VERIFY_SIZES, signal_logprobs=4, sage_paper=SagePaper(record=False)
)
SIX = Tier(depth=6, width=1, nodes=6)
PAIR = load_pair_spec("tiny-llava-ov")


def recorded(pair: Pair, samples: Sequence[Sample], folder: Path) -> Arena:
    """Chains of these samples on record, all of them for choices."""
    manifest = TraceManifest(
        pair_digest="test",
        data_digest="test",
        backend="torch",
        dtype="float32",
        depth=GRID.depth,
        rules=GRID.rules(),
        signal_logprobs=GRID.signal_logprobs,
        versions={},
    )
    Recorder(pair, folder, manifest).record_all([replace(sample, split="tune") for sample in samples], Budget(None))
    record = load_record(folder)
    assert len(record.samples) == len(samples)
    return Arena(Replay(record, costs((1, 1000))), GRID)


def files_of(target: str, lowered: Lowered, folder: Path) -> ExportRequest:
    """Write an export of these decisions."""
    found = TARGETS[target]
    models = (PAIR.resolve(PAIR.target), PAIR.resolve(PAIR.draft))
    made = found.request(load_profile(SHIPPED), lowered, found.version(None), found.method(None), models, None)
    for name, text in found.files(made).items():
        write_text(folder / name, text)
    return made


def emitted(search: LoweringSearch, lowered: Lowered, sample: int) -> list[int]:
    """Tokens of every round, by replay. The last one may accept the end of the output, and then has no bonus."""
    walk = search.contestant(lowered).walk(np.array([sample]))
    rounds: list[int] = (walk.accepted + 1).tolist()
    rounds[-1] -= sum(rounds) - walk.tokens
    return rounds


def acceptance(rounds: list[list[int]]) -> float:
    return sum(map(sum, rounds)) / sum(map(len, rounds))


def shown(engine: str, lowered: Lowered, found: list[list[int]], wanted: list[list[int]]) -> None:
    print(
        f"{engine} {lowered.label()}: acceptance length {acceptance(found):.3f} over {sum(map(len, found))} rounds, "
        f"replayed {acceptance(wanted):.3f} over {sum(map(len, wanted))}"
    )


# transformers


@pytest.fixture(scope="module")
def pictures(torch_pair: Pair, calibration: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> Arena:
    samples = [sample for sample in calibration if sample.modality == "image"][:6]
    return recorded(torch_pair, samples, tmp_path_factory.mktemp("trace"))


def helper_of(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("assisted", folder / "assisted.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("which", ["searched", "chain", "confident"])
def test_transformers_makes_the_rounds_that_replay_predicts(
    pictures: Arena, torch_pair: Pair, calibration: list[Sample], tmp_path: Path, monkeypatch: Any, which: str
) -> None:
    """With pictures. Tokens are compared with plain generation as recorded; drafting begins after the first token, as
    on the record, so that the first token is part of the prompt here."""
    target = TARGETS["transformers"]
    assert transformers.__version__ in target.versions, "read the new release, then name it"
    abilities = target.methods[target.method(None)].abilities
    search = LoweringSearch(pictures, abilities, fixed(Tier(depth=4, width=1, nodes=4), OFF))
    lowered = {
        "searched": search.best.lowered,
        "chain": fixed(SIX, OFF),
        "confident": fixed(SIX, OFF, 0.9),
    }[which]
    made = files_of("transformers", lowered, tmp_path)
    load = AutoModelForImageTextToText.from_pretrained
    models = [load(name, dtype=torch.float32).eval() for name in (made.target, made.draft)]
    module = helper_of(tmp_path)
    monkeypatch.setattr(module.candidate_generator, "is_sklearn_available", lambda: True)
    calls: list[int] = []
    models[0].register_forward_hook(lambda model, args, output: calls.append(1))
    by_id = {sample.id: sample for sample in calibration}
    found, wanted = [], []
    for index, sample in enumerate(pictures.replay.record.samples):
        prompt = torch_pair.encoder.encode(by_id[sample.id].request())
        begun = prompt.extended(np.array(sample.output[:1]))
        ids = torch.from_numpy(begun.input_ids)[None]
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **begun.vision}
        assistant = module.prepared(models[1], inputs)
        assert not module.candidate_generator.is_sklearn_available()
        calls.clear()
        output = models[0].generate(
            **inputs,
            assistant_model=assistant,
            max_new_tokens=len(sample.output) - 1,
            do_sample=False,
        )[0]
        assert output[len(prompt) :].tolist() == list(sample.output)
        rounds = emitted(search, lowered, index)
        assert len(calls) == len(rounds)
        # transformers does not say what each round accepted: its number of passes gives the mean
        found.append([1] * (len(calls) - 1) + [len(sample.output) - len(calls)])
        wanted.append(rounds)
    shown("transformers", lowered, found, wanted)
    assert acceptance(found) == pytest.approx(acceptance(wanted))


# OpenVINO GenAI

QUESTIONS = {
    f"text-{i}": Sample(f"text-{i}", "text", "text", "tune", 48, {"prompt": text}, Path())
    for i, text in enumerate(
        (
            "What is in the picture?",
            "Describe the image in detail.",
            "Which shapes are there, and what colour are they?",
            "How many circles are there?",
            "Describe the image.",
            "Where is the square?",
        )
    )
}


@pytest.fixture(scope="module")
def texts(torch_pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Arena:
    """The embedded pair on text alone: what it says is of no use, but draft and target disagree as elsewhere."""
    return recorded(torch_pair, list(QUESTIONS.values()), tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def openvino_pipes(torch_pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """(plain, with the draft), in float32 throughout: passes of other sizes must not round differently."""
    pytest.importorskip("openvino_genai", reason="needs the extra 'openvino'")
    import openvino_genai as genai

    folder = tmp_path_factory.mktemp("openvino")
    for role, source in (("target", PAIR.target), ("draft", PAIR.draft)):
        convert_text_side(PAIR.resolve(source), folder / role)
        convert_tokenizer(torch_pair.encoder.tokenizer, folder / role)
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 1
    exact = {"scheduler_config": scheduler, "INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    draft = genai.draft_model(str(folder / "draft"), "CPU", **exact)
    target = str(folder / "target")
    return genai.LLMPipeline(target, "CPU", **exact), genai.LLMPipeline(target, "CPU", draft_model=draft, **exact)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the tracer, about shapes that do not vary here
@pytest.mark.parametrize("which", ["searched", "chain", "confident"])
def test_openvino_genai_makes_the_rounds_that_replay_predicts(
    texts: Arena, openvino_pipes: tuple[Any, Any], torch_pair: Pair, tmp_path: Path, which: str
) -> None:
    import openvino as ov
    import openvino_genai as genai

    target = TARGETS["openvino"]
    assert genai.__version__.startswith(target.versions[-1]), "read the new release, then name it"
    abilities = target.methods[target.method(None)].abilities
    search = LoweringSearch(texts, abilities, fixed(Tier(depth=4, width=1, nodes=4), OFF))
    lowered = {
        "searched": search.best.lowered,
        "chain": fixed(Tier(depth=3, width=1, nodes=3), OFF),
        "confident": fixed(SIX, OFF, 0.999, capped=False),
    }[which]
    files_of("openvino", lowered, tmp_path)
    plain, assisted = openvino_pipes
    found, wanted = [], []
    for index, sample in enumerate(texts.replay.record.samples):
        prompt = torch_pair.encoder.encode(QUESTIONS[sample.id].request())
        ids = ov.Tensor(prompt.input_ids[None])
        results = []
        for pipe, file in ((plain, None), (assisted, tmp_path / "generation_config.json")):
            config = genai.GenerationConfig(str(file)) if file else genai.GenerationConfig()
            config.max_new_tokens = len(sample.output)
            config.set_eos_token_id(min(torch_pair.eos_ids))
            config.validate()
            results.append(pipe.generate(ids, config))
        assert results[0].tokens[0] == results[1].tokens[0] == list(sample.output)
        passes = list(results[1].extended_perf_metrics.main_model_metrics.raw_metrics.m_batch_sizes)
        found.append(passes[1:])  # the first one is the prompt's
        wanted.append(emitted(search, lowered, index))
    shown("OpenVINO GenAI", lowered, found, wanted)
    assert found == wanted
