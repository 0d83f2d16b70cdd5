"""What is done to logits before a token is chosen, row by row on the host. `torch_filters` does it on a device.

Filters and their order are those of transformers' processors: repetition penalty, temperature, top-k, top-p.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiles.sampling import SamplingRegime
from runtime.policy.tree import FloatArray, IntArray


def penalised(logits: FloatArray, rows: IntArray, tokens: IntArray, penalty: float) -> FloatArray:
    """Logits [n, vocab] with a repetition penalty on the (row, token) pairs: positive ones divided by it, negative
    ones multiplied (arXiv 1909.05858). A pair that is named twice is penalised once."""
    changed = logits.copy()
    values = logits[rows, tokens]
    changed[rows, tokens] = np.where(values < 0, values * np.float32(penalty), values / np.float32(penalty))
    return changed


def filtered(logits: FloatArray, regime: SamplingRegime) -> FloatArray:
    """Logits [n, vocab] over the temperature, -inf where top-k or top-p leaves a token out.

    Tokens as probable as the k-th stay. Top-p keeps the fewest tokens whose probability reaches p, of equally
    probable ones the lower id.
    """
    scaled: FloatArray = logits / np.float32(regime.temperature)
    vocab = scaled.shape[-1]
    if 0 < regime.top_k < vocab:
        kth = np.partition(scaled, vocab - regime.top_k, axis=-1)[:, vocab - regime.top_k, None]
        scaled[scaled < kth] = -np.inf
    if regime.top_p < 1:
        for row in scaled:
            keep = nucleus(row, regime.top_p)
            values = row[keep]
            row[:] = -np.inf
            row[keep] = values
    return scaled


def nucleus(scaled: FloatArray, top_p: float) -> npt.NDArray[np.int64]:
    """The tokens of one row [vocab] that top-p keeps, most probable first."""
    weights = np.exp(scaled - scaled.max())
    total = float(weights.sum(dtype=np.float64))
    # all tokens at or below this weight hold at most 1 - p together, so none of them is needed to reach p
    likely = np.nonzero(weights > (1.0 - top_p) * total / len(scaled))[0]
    order = likely[np.argsort(-scaled[likely], kind="stable")]
    mass = weights[order].astype(np.float64)
    kept: npt.NDArray[np.int64] = order[np.cumsum(mass) - mass < top_p * total]
    return kept


def perturbed(logits: FloatArray, regime: SamplingRegime, noise: FloatArray) -> FloatArray:
    """(filtered logits + noise) / lambda, [n, vocab]: its largest entry is the sampled token."""
    scores = filtered(logits, regime)
    scores += noise
    if regime.draft_lambda != 1:
        scores /= np.float32(regime.draft_lambda)
    return scores
