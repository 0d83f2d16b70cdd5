"""Estimated costs of a device that is not here: the roofline of its data sheet, and nothing more.

A pass takes the longer of two times (Williams, Waterman, Patterson 2009): reading its weights and its cache rows at
the memory's bandwidth, or multiplying at the dense tensor rate. Real kernels stay below both roofs, launches and
the host add to them, under sampling also noise and filters, so real passes are slower; ratios between passes are
what an estimate is good for. Layers that are spread over several devices run one after the other, so their times add
up to those of one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiles.config import GridConfig, TuneConfig
from profiles.errors import BadInput
from profiles.measurement import FREE_SLACK, CostTable, HostTime, PassKind, PassTime
from profiles.model_shape import ModelShape
from profiles.registry import DTYPE_BYTES, GpuSpec, gpu_specs, load_gpu_spec, load_pair_spec
from runtime.model_facts import model_shape, needed_gib, own_pair
from tuner.costs import CATCH_UP_SIZES, context_grid
from tuner.machine import find_device

CONTEXTS = (512, 8192)
"""Shortest and longest context of an estimate: a picture with a question, and a long video."""
WIDEST = 1 << 16
LOOKUP_NS = 1.0
"""What a pass of a prompt lookup is charged: a table has no zero. All its time is the host's, which is left out."""


@dataclass(frozen=True)
class PairFacts:
    """What an estimate needs to know of a pair."""

    target: ModelShape
    draft: ModelShape | None
    """None for a prompt lookup, which moves no weights."""
    dtype: str


def pass_ns(shape: ModelShape, gpu: GpuSpec, dtype: str, n: int, context: int) -> float:
    """Time of a pass of `n` tokens over `context` cached rows.

    Bytes: the weights that the pass reads, and all cache rows, old and new. Operations: two per weight and token,
    and four per head, head dimension and pair of token and row (scores, then values). Raises BadInput when the
    device's figures are not published, or not for this dtype.
    """
    if gpu.bandwidth_gb_per_s is None or gpu.dense_bf16_tflops is None:
        raise BadInput(f"'{gpu.name}' has no published figures to estimate from; it can only be measured")
    if DTYPE_BYTES[dtype] != 2:
        raise BadInput(f"estimates are made for bfloat16 and float16, whose tensor rate is published, not {dtype}")
    rows = context + n
    moved_bytes = (shape.read_parameters(n) + rows * shape.kv_values()) * DTYPE_BYTES[dtype]
    attention = 4 * shape.layers * shape.heads * shape.head_dim * rows
    operations = n * (2 * shape.multiplied_parameters() + attention)
    # GB/s is bytes per ns, TFLOP/s a thousand operations per ns
    return max(moved_bytes / gpu.bandwidth_gb_per_s, operations / (gpu.dense_bf16_tflops * 1e3))


def estimate_costs(pair: PairFacts, gpu: GpuSpec, grid: GridConfig, contexts: Sequence[int]) -> CostTable:
    """A cost table of every pass that the grid allows, marked `estimated`. The host's share is unknown and left
    out: its terms are zero."""
    sizes: dict[PassKind, tuple[ModelShape | None, tuple[int, ...]]] = {
        "plain": (pair.target, (1,)),
        "verify": (pair.target, grid.verify_sizes),
        "catch_up": (pair.draft, CATCH_UP_SIZES),
        "frontier": (pair.draft, grid.widths),
    }
    passes = []
    for kind, (shape, counts) in sizes.items():
        for n in counts:
            for context in contexts:
                ns = LOOKUP_NS if shape is None else pass_ns(shape, gpu, pair.dtype, n, context)
                passes.append(PassTime(kind=kind, n=n, context=context, time_ns=ns, p10_ns=ns, p90_ns=ns, samples=0))
    host = HostTime(plain_ns=0.0, round_ns=0.0, level_ns=0.0, rounds=0)
    return CostTable(mark="estimated", threads=1, passes=tuple(passes), host=host)


def free_width(shape: ModelShape, gpu: GpuSpec, dtype: str, context: int) -> int:
    """The knee: most tokens that a pass can take for at most `FREE_SLACK` more time than one token takes.

    By bisection, since the time never falls with n.
    """
    limit = (1.0 + FREE_SLACK) * pass_ns(shape, gpu, dtype, 1, context)
    low, high = 1, WIDEST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if pass_ns(shape, gpu, dtype, middle, context) <= limit else (low, middle)
    return low


@dataclass(frozen=True)
class Estimate:
    """What `profile --estimate` shows."""

    pair: str
    gpu: GpuSpec
    dtype: str
    weights_gib: float
    costs: CostTable
    knees: dict[int, int]
    """Context to the free width of the target there."""
    draft_has_weights: bool = True

    def devices(self) -> int:
        """Devices whose memory holds the weights, the cache not counted."""
        return 1 if self.gpu.memory_gib is None else max(1, -int(-self.weights_gib // self.gpu.memory_gib))

    def document(self) -> dict[str, object]:
        """The numbers for a script."""
        return {
            "mark": self.costs.mark,
            "pair": self.pair,
            "gpu": self.gpu.name,
            "dtype": self.dtype,
            "weights_gib": self.weights_gib,
            "devices": self.devices(),
            "cost_ratio": self.costs.cost_ratio() if self.draft_has_weights else None,
            "free_width": {str(context): knee for context, knee in self.knees.items()},
            "passes": [p.model_dump(include={"kind", "n", "context", "time_ns"}) for p in self.costs.passes],
        }


def estimate_pair(config: TuneConfig) -> Estimate:
    """The estimate of a configured pair on a configured device, which need not be here. No weights are read; a
    model whose file does not state its shape is asked for its configuration."""
    spec = own_pair(load_pair_spec(config.model), config.target, config.draft)
    gpu = load_gpu_spec(find_device("auto").spec_name) if config.gpu == "auto" else gpu_specs(config.gpu)[0]
    dtype = spec.dtype if config.dtype == "auto" else config.dtype
    target = model_shape(spec, spec.target)
    draft = None if spec.draft.prompt_lookup is not None else model_shape(spec, spec.draft)
    contexts = context_grid(*CONTEXTS, config.grid.contexts)
    return Estimate(
        pair=spec.name,
        gpu=gpu,
        dtype=dtype,
        weights_gib=needed_gib(spec, dtype),
        costs=estimate_costs(PairFacts(target, draft, dtype), gpu, config.grid, contexts),
        knees={context: free_width(target, gpu, dtype, context) for context in contexts},
        draft_has_weights=draft is not None,
    )
