"""The folder that a user takes away: graphs or engines of both models, the compiled policy, and how to run them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from exports.onnx_parity import Parity
from profiles.engine_contract import EngineRecord
from profiles.errors import BadInput
from profiles.frozen import Frozen
from profiles.graph_contract import PARITY_FILE, read_graph
from profiles.policy import CompiledPolicy
from profiles.policy_profile import PolicyProfile
from profiles.provenance import digest
from profiles.store import read_json, write_json, write_text

POLICY_FILE, REPORT_FILE, README_FILE = "policy.json", "bundle.json", "README.md"
Kind = Literal["onnx", "tensorrt"]


class PolicyFile(Frozen):
    """The compiled policy beside the graphs that it steers."""

    profile: str
    profile_digest: str
    policy_digest: str
    policy: CompiledPolicy


class BundlePart(Frozen):
    """One model of the bundle. Errors are relative to the largest value (`exports.onnx_parity`)."""

    role: str
    architecture: str
    dtype: str
    opset: int
    digest: str
    size_bytes: int
    parity_engine: str
    parity_worst: float
    same_argmax: float
    """Least share of rows, of all compared passes, whose most probable token is the model's."""
    engine: EngineRecord | None = None


class BundleReport(Frozen):
    """What was written and what it is worth."""

    kind: Kind
    folder: str
    profile_digest: str
    policy_digest: str
    parts: tuple[BundlePart, ...]
    notes: tuple[str, ...] = ()
    """What the target cannot express, or what was not tried; one sentence each."""

    def document(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def lines(self) -> list[tuple[str, str]]:
        """Name and value of each row of a table."""
        rows = [("folder", self.folder), ("policy digest", self.policy_digest[:12])]
        for part in self.parts:
            rows += [
                (part.role, f"{part.architecture}, {part.dtype}, {part.size_bytes / (1 << 20):.3g} MiB"),
                (
                    f"{part.role} parity",
                    f"largest error {part.parity_worst:.2g} of the largest value, same argmax {part.same_argmax:.1%}",
                ),
            ]
            if part.engine is not None:
                sizes = ", ".join(str(size) for size in part.engine.step_sizes)
                rows.append(
                    (
                        f"{part.role} engine",
                        f"{part.engine.builder} {part.engine.builder_version}, "
                        f"{', '.join(part.engine.compute_capabilities)}, steps of {sizes}, "
                        f"{part.engine.max_past} cached rows",
                    )
                )
        return [*rows, *(("note", note) for note in self.notes)]


def prepare_folder(folder: Path) -> None:
    """Remove an earlier bundle. Raises BadInput for a folder that holds something else."""
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file; give a folder")
    if folder.is_dir() and any(folder.iterdir()):
        try:
            earlier = read_json(folder / REPORT_FILE, BundleReport)
        except BadInput:
            raise BadInput(f"{folder} holds something that is no bundle; give another folder") from None
        for part in earlier.parts:
            shutil.rmtree(folder / part.role, ignore_errors=True)
        (folder / REPORT_FILE).unlink()


def write_bundle(
    frozen: PolicyProfile,
    kind: Kind,
    folder: Path,
    graphs: Mapping[str, Path],
    engines: Mapping[str, EngineRecord] | None = None,
    notes: tuple[str, ...] = (),
) -> BundleReport:
    """Write policy, README and, last, the report into `folder`, whose subfolders by role hold graphs or engines
    already. `graphs` are the folders of the step graphs by role, wherever they are: their parity is reported.

    Raises ProfileError when a graph folder is incomplete or changed.
    """
    policy_digest = digest(frozen.policy.model_dump(mode="json"))
    write_json(
        folder / POLICY_FILE,
        PolicyFile(
            profile=frozen.name, profile_digest=frozen.digest, policy_digest=policy_digest, policy=frozen.policy
        ),
    )
    parts = []
    for role, place in graphs.items():
        graph, parity = read_graph(place), read_json(place / PARITY_FILE, Parity)
        parts.append(
            BundlePart(
                role=role,
                architecture=graph.architecture,
                dtype=graph.dtype,
                opset=graph.opset,
                digest=graph.digest,
                size_bytes=sum(path.stat().st_size for path in (folder / role).iterdir()),
                parity_engine=parity.engine,
                parity_worst=parity.worst,
                same_argmax=min(case.same_argmax for case in parity.cases),
                engine=engines[role] if engines else None,
            )
        )
    report = BundleReport(
        kind=kind,
        folder=str(folder),
        profile_digest=frozen.digest,
        policy_digest=policy_digest,
        parts=tuple(parts),
        notes=notes,
    )
    text = README.format(
        name=frozen.name,
        pair=frozen.pair.name,
        rows="\n".join(f"| {name} | {value} |" for name, value in report.lines()),
        body=(ONNX_BODY if kind == "onnx" else TENSORRT_BODY)
        .replace("PAIR", frozen.pair.name)
        .replace("DTYPE", parts[0].dtype),
    )
    write_text(folder / README_FILE, text)
    write_json(folder / REPORT_FILE, report)
    return report


README = """# {name}: step graphs of the pair {pair}

| | |
|---|---|
{rows}

`policy.json` is the compiled policy: `tiers[table[signal bin][history state]]` is the tree of a round. Its digest is
the one above; whatever runs it should echo it.

{body}"""

ONNX_BODY = """## Files

`target/` and `draft/` each hold a whole graph; the files of a folder belong together.

| file | what |
|---|---|
| `step.onnx`, `step.onnx.data` | one masked pass of the text side; the second file only where the weights are large |
| `embeddings.npy` | token embeddings (bfloat16 as uint16 bits) |
| `step.json` | sizes, precision, and the SHA-256 of the files above |
| `parity.json` | how far the graph's numbers are from the model's, over random contexts and trees |

Pictures are embedded by the model's own vision tower; their features go into `inputs_embeds` (and `deepstack`, where
the graph has that input) of the prompt's pass, with the family's own positions. Text has the same position on every
axis.

## Run it with plain ONNX Runtime

`pip install numpy onnxruntime`, then from this folder (float32 or float16 graphs; the CPU engine of ONNX Runtime has
no bfloat16 products):

```python
import json
from pathlib import Path

import numpy as np
import onnxruntime as ort

folder = Path("target")
facts = json.loads((folder / "step.json").read_text())
layers, axes = facts["layers"], facts["position_axes"]
embeddings = np.load(folder / "embeddings.npy").astype(np.float32)
engine = ort.InferenceSession(str(folder / "step.onnx"), providers=["CPUExecutionProvider"])
names = [f"past_{kind}_{i}" for kind in ("key", "value") for i in range(layers)]
cache = np.zeros((2 * layers, 512, facts["kv_heads"], facts["head_dim"]), facts["dtype"])


def run(tokens, positions, visible, past):
    # logits [n, vocab]; visible is [n, past + n]; the n new cache rows go behind the first `past` ones
    n = len(tokens)
    feed = {
        "inputs_embeds": embeddings[tokens][None],
        "position_ids": np.tile(np.asarray(positions), (axes, 1)),
        "mask": np.where(visible, 0, np.finfo(np.float32).min).astype(np.float32)[None, None],
        "logit_rows": np.arange(n),
    }
    if facts["deepstack_layers"]:
        feed["deepstack"] = np.zeros((facts["deepstack_layers"], n, facts["hidden"]), np.float32)
    feed |= {name: rows[:past] for name, rows in zip(names, cache)}
    logits, *new = engine.run(None, feed)
    for rows, added in zip(cache, new):
        rows[past : past + n] = added
    return logits


prompt = [11, 12, 13, 14]  # ids of your tokenizer
past = len(prompt)
logits = run(prompt, range(past), np.tri(past, dtype=bool), 0)
root = int(logits[-1].argmax())

# a tree under the root: nodes 1 and 2 are its children, node 3 is a child of 1
tokens, parents, depths = [root, 15, 16, 17], [-1, 0, 0, 1], [0, 1, 1, 2]
visible = np.ones((4, past + 4), bool)
visible[:, past:] = np.eye(4, dtype=bool)
for node, parent in enumerate(parents[1:], start=1):
    visible[node, past:] |= visible[parent, past:]
logits = run(tokens, past + np.array(depths), visible, past)

# accept: walk down while the target's own choice is one of the children, then keep the rows of the path
path, choice = [0], int(logits[0].argmax())
while child := next((i for i, p in enumerate(parents) if p == path[-1] and tokens[i] == choice), 0):
    path.append(child)
    choice = int(logits[child].argmax())
cache[:, past : past + len(path)] = cache[:, past + np.array(path)]
print("accepted", [tokens[i] for i in path[1:]], "then", choice)
```

The whole loop (drafting, tiers, history) is `runtime/decode.py` of sage_tune.
"""

TENSORRT_BODY = """## Files

`target/` and `draft/` each hold an engine; the files of a folder belong together.

| file | what |
|---|---|
| `step.plan` | the engine, for the architectures and the library version in `engine.json` and no other |
| `embeddings.npy` | token embeddings (bfloat16 as uint16 bits) |
| `engine.json` | sizes, optimisation profiles, digests of the graph and of the policy, SHA-256 of the files above |

Every pass is padded to one of the engine's step sizes, which are those of the policy, and its context to a multiple
of 256 rows; prompts run in pieces.

## Run it with sage_tune

On a machine with the GPU, its driver and the same library version, from this folder:

```python
import json
from pathlib import Path

from profiles.policy import CompiledPolicy
from profiles.registry import load_pair_spec
from runtime.decode import generate
from runtime.pair import PairPlan, load_pair
from runtime.prompts import ask

policy = CompiledPolicy.model_validate(json.loads(Path("policy.json").read_text())["policy"])
plan = PairPlan(load_pair_spec("PAIR"), "tensorrt", "DTYPE", "cuda:0", threads=1)
pair = load_pair(plan, (Path("target"), Path("draft")))
prompt = pair.encoder.encode(ask("What is in the picture?", [Path("picture.png")]))
print(generate(pair, prompt, policy, max_new_tokens=64).text)
```

A plan for another architecture or library version is refused when it is loaded, with what was saved and found.
"""
