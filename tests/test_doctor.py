"""The doctor: a sound pair passes, and every planted fault is named by the check that is there for it."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, LlavaOnevisionForConditionalGeneration

import runtime.decode
from commands.opening import open_pair
from profiles.config import TuneConfig
from profiles.errors import BadInput, HardwareMissing
from profiles.registry import load_pair_spec
from runtime.backends.base import Rows
from runtime.model_side import read_side
from runtime.output import Output
from runtime.pair import Pair
from runtime.prompts import Prompt
from sage_tune import app
from tests.fakes import EOS, FakeModel, FakeSession, fake_pair, fake_prompt
from tests.records import SAMPLED
from tuner.doctor import check_files, check_live, examine
from tuner.findings import Finding, Report, Status
from tuner.plan import plan_pair
from tuner.probes import Probe, Subject, drawn, subject_of

ROOT = Path(__file__).resolve().parent.parent
EMBEDDED = ROOT / "profiles" / "pairs" / "tiny-llava-ov"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the embedded pair as a user's own, to be damaged."""
    for side in ("target", "draft"):
        shutil.copytree(EMBEDDED / side, tmp_path / side)
    (tmp_path / "pair.toml").write_text(
        'name = "copy"\ntarget = { path = "target" }\ndraft = { path = "draft" }\nmodalities = ["image"]\n'
        "weights_gib = 0.1\n"
    )
    return tmp_path


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def by_check(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


def files_of(folder: Path) -> dict[str, Finding]:
    spec = load_pair_spec(str(folder / "pair.toml"))
    return by_check(check_files(read_side(spec, "target"), read_side(spec, "draft")))


def swap_two_tokens(folder: Path) -> None:
    def swap(document: dict[str, Any]) -> None:
        vocabulary = document["model"]["vocab"]
        vocabulary["A"], vocabulary["B"] = vocabulary["B"], vocabulary["A"]

    edit(folder / "draft" / "tokenizer.json", swap)


def pad_the_draft_more(folder: Path) -> None:
    edit(folder / "draft" / "config.json", lambda d: d["text_config"].update(vocab_size=960))


def shrink_the_draft_head(folder: Path) -> None:
    edit(folder / "draft" / "config.json", lambda d: d["text_config"].update(vocab_size=800))


def other_end(folder: Path) -> None:
    edit(folder / "draft" / "generation_config.json", lambda d: d.update(eos_token_id=0))


def one_more_end(folder: Path) -> None:
    edit(folder / "draft" / "generation_config.json", lambda d: d.update(eos_token_id=[0, 2]))


def other_template(folder: Path) -> None:
    path = folder / "draft" / "chat_template.jinja"
    path.write_text(path.read_text().replace("<|im_start|>assistant", "<|im_start|>bot"))


def broken_template(folder: Path) -> None:
    (folder / "draft" / "chat_template.jinja").write_text("{{ raise_exception('one turn only') }}")


def no_template(folder: Path) -> None:
    (folder / "draft" / "chat_template.jinja").unlink()


def other_theta(folder: Path) -> None:
    edit(folder / "draft" / "config.json", lambda d: d["text_config"]["rope_parameters"].update(rope_theta=1e6))


def smaller_window(folder: Path) -> None:
    edit(folder / "draft" / "config.json", lambda d: d["text_config"].update(max_position_embeddings=512))


def other_placeholder(folder: Path) -> None:
    edit(folder / "draft" / "config.json", lambda d: d.update(image_token_index=4))


def other_picture_size(folder: Path) -> None:
    edit(folder / "draft" / "preprocessor_config.json", lambda d: d.update(size={"height": 56, "width": 56}))


def other_patch(folder: Path) -> None:
    edit(folder / "draft" / "config.json", lambda d: d["vision_config"].update(patch_size=12))


def other_grid(folder: Path) -> None:
    edit(folder / "draft" / "preprocessor_config.json", lambda d: d.update(image_grid_pinpoints=[[84, 168]]))


def other_special_token(folder: Path) -> None:
    edit(folder / "draft" / "tokenizer_config.json", lambda d: d.update(bos_token="<|im_start|>"))


def sliding_layer(folder: Path) -> None:
    def slide(document: dict[str, Any]) -> None:
        text = document["text_config"]
        text.update(use_sliding_window=True, sliding_window=64, max_window_layers=1)
        text["layer_types"] = ["full_attention", "sliding_attention"]

    edit(folder / "draft" / "config.json", slide)


PLANTED_IN_FILES: list[tuple[Callable[[Path], None], str, Status, str]] = [
    (swap_two_tokens, "tokenizers", "fail", "id 37 is 'A' in the target and 'B' in the draft"),
    (shrink_the_draft_head, "vocabulary padding", "fail", "goes up to 888, the draft has 800 rows"),
    (other_end, "end of sequence", "fail", "must overlap; the target ends at 2 '<|im_end|>', the draft at 0 '<|endo"),
    (one_more_end, "end of sequence", "warn", "the target ends at 2 '<|im_end|>', the draft at 0 '<|endoftext|>', 2"),
    (other_template, "chat templates", "warn", r"'assistant\n' in the target and 'bot\n' in the draft"),
    (broken_template, "chat templates", "fail", "the draft's chat template cannot render two turns: one turn only"),
    (no_template, "chat templates", "warn", "no chat template of its own"),
    (other_theta, "rotary embedding", "warn", "'rope_theta' is 10000.0 in the target and 1000000.0 in the draft"),
    (smaller_window, "maximal positions", "warn", "got 512 < 2048 positions: from context 512 on nothing"),
    (other_placeholder, "placeholders", "fail", "the draft's processor writes 3, its model looks for 4"),
    (other_picture_size, "processors", "warn", "'size' is {'height': 84, 'width': 84} in the target and {'height': 56"),
    (other_patch, "processors", "fail", "'tower patch_size' is 14 in the target and 12 in the draft"),
    (other_grid, "processors", "warn", "'image_grid_pinpoints' is [[84, 84]] in the target and [[84, 168]] in the d"),
    (other_special_token, "special tokens", "warn", "'bos_token' is id None in the target and 1 in the draft"),
    (sliding_layer, "attention", "fail", "the draft has sliding_attention"),
]


def test_the_embedded_pair_has_sound_files(folder: Path) -> None:
    found = files_of(folder)
    assert {name: finding.text for name, finding in found.items() if finding.status != "pass"} == {}


@pytest.mark.parametrize(
    ("plant", "check", "status", "sentence"), PLANTED_IN_FILES, ids=[p[0].__name__ for p in PLANTED_IN_FILES]
)
def test_a_fault_in_the_files_is_named(
    folder: Path, plant: Callable[[Path], None], check: str, status: Status, sentence: str
) -> None:
    plant(folder)
    found = files_of(folder)
    assert found[check].status == status and sentence in found[check].text, found[check]
    others = {name for name, f in found.items() if f.status not in ("pass", "skipped") and name != check}
    assert others == set(), {name: found[name].text for name in others}


def test_another_padding_passes_with_its_plan(folder: Path) -> None:
    pad_the_draft_more(folder)
    finding = files_of(folder)["vocabulary padding"]
    assert finding.status == "pass"
    assert "(896 rows in the target, 960 in the draft): ids 896 to 959, which only the draft has, are" in finding.text


def test_a_text_draft_of_a_target_that_sees_is_refused(own_pair_file: Path) -> None:
    mixed = own_pair_file.parent / "mixed.toml"
    mixed.write_text(
        f'name = "mixed"\ntarget = {{ path = "{EMBEDDED / "target"}" }}\ndraft = {{ path = "draft" }}\n'
        "weights_gib = 0.1\n"
    )
    spec = load_pair_spec(str(mixed))
    found = by_check(check_files(read_side(spec, "target"), read_side(spec, "draft")))
    assert found["processors"].text == "the target reads pictures, the draft reads text only"


# live checks, on fakes


def fake_subject(pair: Pair) -> Subject:
    probes = tuple(Probe(f"p{seed}", fake_prompt(seed), 40) for seed in (1, 2, 3))
    return Subject(pair, probes, frozenset({EOS}))


def live_of(pair: Pair) -> dict[str, Finding]:
    return by_check(check_live(fake_subject(pair)))


def test_a_sound_fake_pair_passes_every_live_check() -> None:
    found = live_of(fake_pair(noise=0.5))
    assert {name: finding.text for name, finding in found.items() if finding.status != "pass"} == {}
    assert set(found) == {
        "live rounds",
        "acceptance, text",
        "tree pass",
        "cache rollback",
        "exact end",
        "losslessness",
    }
    assert found["losslessness"].text == "120 tokens of 3 prompts equal plain decoding"
    assert "at all 5 offsets" in found["exact end"].text


def test_a_sound_fake_pair_passes_when_it_samples() -> None:
    subject = dataclasses.replace(fake_subject(fake_pair(noise=0.5)), regime=SAMPLED)
    found = by_check(check_live(subject))
    assert {name: finding.text for name, finding in found.items() if finding.status != "pass"} == {}
    probe = subject.probes[0]
    greedy = fake_subject(fake_pair(noise=0.5)).drafted(probe).tokens
    assert subject.drafted(probe).tokens == subject.plain(probe).tokens != greedy


class ContraryModel(FakeModel):
    """Proposes what the target wants least."""

    def logits(self, rows: list[tuple[int, int]]) -> np.ndarray:
        return -super().logits(rows)


def test_a_draft_that_proposes_nothing_useful_is_inert() -> None:
    found = live_of(dataclasses.replace(fake_pair(), draft=ContraryModel(101, 0.0)))
    inert = found["acceptance, text"]
    assert inert.status == "fail" and "acceptance length > 1.02 must hold, got 1.00 tokens per round" in inert.text
    end = found["exact end"]
    assert end.status == "skipped" and "no round accepted a drafted token" in end.text
    assert {name for name, finding in found.items() if finding.status == "fail"} == {"acceptance, text"}


class LazySession(FakeSession):
    """`keep` does nothing."""

    def _compact(self, base: int, rows: list[int]) -> None:
        pass


class ForgetfulSession(FakeSession):
    """`keep` drops the last kept row and repeats the one before."""

    def _compact(self, base: int, rows: list[int]) -> None:
        super()._compact(base, rows)
        if len(rows) > 1:
            self._rows[-1] = self._rows[-2]


class FakeModelWith(FakeModel):
    """A fake whose sessions are of another class."""

    session_class: type[FakeSession]

    def open(self, prompt: Prompt, capacity: int, positions: int | None = None) -> tuple[FakeSession, Rows]:
        opened, rows = super().open(prompt, capacity, positions)
        session = self.session_class(self, capacity)
        session.__dict__.update(opened.__dict__)
        return session, rows


def model_with(session_class: type[FakeSession], seed: int, noise: float) -> FakeModel:
    kind = type("Planted", (FakeModelWith,), {"session_class": session_class})
    model: FakeModel = kind(seed, noise)
    return model


@pytest.mark.parametrize("session_class", [LazySession, ForgetfulSession])
@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_cache_that_does_not_roll_back_is_found(session_class: type[FakeSession], role: str) -> None:
    seed, noise = (100, 0.0) if role == "target" else (101, 0.5)
    pair = dataclasses.replace(fake_pair(noise=0.5), **{role: model_with(session_class, seed, noise)})
    finding = live_of(pair)["cache rollback"]
    assert finding.status == "fail", finding
    assert f"the {role}'s logits differ by" in finding.text and "after step 1" in finding.text


class BlindSession(FakeSession):
    """A tree pass of several branches attends causally: siblings see each other."""

    def _run(self, tokens: np.ndarray, positions: np.ndarray, visible: np.ndarray) -> Rows:
        n, past = len(tokens), self.length
        if n > 1 and past:
            visible = np.tril(np.ones((n, past + n), dtype=np.bool_), k=past)
        return super()._run(tokens, positions, visible)


def test_a_tree_pass_that_is_not_its_plain_passes_is_found() -> None:
    pair = dataclasses.replace(fake_pair(noise=0.5), target=model_with(BlindSession, 100, 0.0))
    found = live_of(pair)
    assert found["tree pass"].status == "fail" and "the target's logits at a leaf" in found["tree pass"].text
    lossless = found["losslessness"]
    assert lossless.status == "fail" and "a bug, not a tie" in lossless.text
    assert "differs at token" in lossless.text and "nats between" in lossless.text


class Overrun(Output):
    """Looks for the end only behind the tokens of a whole round."""

    def take(self, tokens: Any) -> int:
        ends, self._eos_ids = self._eos_ids, frozenset()
        taken = super().take(tokens)
        self._eos_ids = ends
        if self.finished is None and self._eos_ids & set(tokens):
            self.finished = "eos"
        return taken


def test_a_decoder_that_runs_past_the_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime.decode, "Output", Overrun)
    finding = live_of(fake_pair(noise=0.5))["exact end"]
    assert finding.status == "fail" and "an output must stop at its end token" in finding.text
    assert "at offset 1 of an accepted path" in finding.text


def test_a_near_tie_warns_and_is_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = fake_pair(noise=0.5)
    target = pair.target
    usual = target.logits  # type: ignore[attr-defined]

    def tied(rows: list[tuple[int, int]]) -> np.ndarray:
        logits = usual(rows)
        best = np.argsort(-logits)[:2]
        logits[best[1]] = logits[best[0]]
        # which of the two comes out on top depends on how many rows a pass has, as rounding would
        logits[max(best) if tied.rows > 1 else min(best)] += np.float32(1e-6)  # type: ignore[attr-defined]
        return logits

    run = FakeSession._run

    def counted(self: FakeSession, tokens: np.ndarray, positions: np.ndarray, visible: np.ndarray) -> Rows:
        tied.rows = len(tokens)  # type: ignore[attr-defined]
        return run(self, tokens, positions, visible)

    monkeypatch.setattr(target, "logits", tied)
    monkeypatch.setattr(FakeSession, "_run", counted)
    finding = live_of(pair)["losslessness"]
    assert finding.status == "warn" and "by a tie" in finding.text, finding


def test_a_check_that_breaks_says_by_what_and_the_others_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = fake_pair(noise=0.5)
    monkeypatch.setattr(pair.draft, "logits", lambda rows: np.full(24, np.nan, np.float32), raising=False)
    found = live_of(pair)
    assert found["live rounds"].status == "fail" and "not finite" in found["live rounds"].text
    assert found["tree pass"].status == "fail" and "the draft's" in found["tree pass"].text


# the whole command


def refuse() -> Pair:
    raise AssertionError("a pair with broken files must not be loaded")


def test_broken_files_keep_the_weights_unread(folder: Path) -> None:
    swap_two_tokens(folder)
    spec = load_pair_spec(str(folder / "pair.toml"))
    report, error = examine(spec, TuneConfig(), refuse)
    last = report.findings[-1]
    assert error is None and report.exit_code(strict=False) == 1
    assert (last.check, last.status) == ("live checks", "skipped") and "failed: tokenizers" in last.text


def test_a_pair_that_does_not_fit_keeps_its_exit_code(folder: Path) -> None:
    def too_large() -> Pair:
        raise HardwareMissing("needs 152 GiB")

    report, error = examine(load_pair_spec(str(folder / "pair.toml")), TuneConfig(), too_large)
    assert error is not None and error.exit_code == 3
    assert by_check(list(report.findings))["loading"].text == "needs 152 GiB"


def test_a_warning_fails_only_under_strict() -> None:
    report = Report("x", (Finding("a", "pass", ""), Finding("b", "warn", ""), Finding("c", "skipped", "")))
    assert (report.exit_code(False), report.exit_code(True)) == (0, 1)
    assert report.status == "warn" and report.summary() == "1 warn, 1 pass, 1 skipped"


def test_a_missing_folder_is_bad_input(folder: Path) -> None:
    shutil.rmtree(folder / "draft")
    with pytest.raises(BadInput, match=r"draft holds no model \(config.json is missing\)"):
        read_side(load_pair_spec(str(folder / "pair.toml")), "draft")


def test_random_draft_weights_are_found_without_a_calibration_set(folder: Path) -> None:
    """The real classes, and the doctor's own prompts: the pair file names no calibration set."""
    torch.manual_seed(3)
    config = AutoConfig.from_pretrained(folder / "draft")
    LlavaOnevisionForConditionalGeneration(config).save_pretrained(folder / "draft")
    config = TuneConfig(model=str(folder / "pair.toml"), gpu="cpu", backend="torch", threads=1)
    plan = plan_pair(config)[0]
    report, error = examine(plan.spec, config, lambda: open_pair(plan))
    found = by_check(list(report.findings))
    assert error is None and report.exit_code(strict=False) == 1
    assert found["acceptance, image"].status == "fail" and "the draft is inert" in found["acceptance, image"].text
    assert {name for name, f in found.items() if f.status == "fail"} == {"acceptance, image"}


def test_the_embedded_pair_passes_live(torch_pair: Pair) -> None:
    config = TuneConfig(gpu="cpu", backend="torch", threads=1)
    subject = subject_of(torch_pair, config, read_side(torch_pair.spec, "target"))
    assert subject.modalities() == ["image", "video"] and len(subject.probes) == 6
    found = check_live(subject)
    assert {f.check: f.text for f in found if f.status != "pass"} == {}
    assert {"acceptance, image", "acceptance, video"} <= {f.check for f in found}


def test_a_prompt_grows_by_text(torch_pair: Pair) -> None:
    types = torch.tensor([[0, 1, 1, 0]])
    prompt = Prompt(np.arange(4), {"mm_token_type_ids": types, "pixels": torch.ones(1, 3, 2, 2)}, "image")
    longer = prompt.extended(np.array([7, 8]))
    assert longer.input_ids.tolist() == [0, 1, 2, 3, 7, 8]
    assert longer.vision["mm_token_type_ids"].tolist() == [[0, 1, 1, 0, 0, 0]]
    assert longer.vision["pixels"] is prompt.vision["pixels"] and len(prompt) == 4


def test_drawn_pictures_move() -> None:
    assert drawn(0).tobytes() != drawn(1).tobytes()


def test_the_command_ends_with_json_and_exit_code_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other_end(folder)
    code = app(["doctor", "--model", str(folder / "pair.toml"), "--gpu", "cpu", "--json"], standalone_mode=False)
    printed = capsys.readouterr().out
    document = json.loads(printed.splitlines()[-1])
    assert code == 1 and document["status"] == "fail" and document["subject"] == "copy"
    assert [f["check"] for f in document["findings"] if f["status"] == "fail"] == ["end of sequence"]
    assert "must overlap" in printed
    with pytest.raises(BadInput, match="unknown model 'nonesuch'"):
        app(["doctor", "--model", "nonesuch"], standalone_mode=False)
