"""SVIP (arXiv 2411.18462): a linear draft that ends when the draft's entropy H says so, sqrt(H) > h.

The token drawn from the distribution that ends the draft is kept, as in the authors' code
(vanilla-sd/eval_specbench.py, where a factor stands under the root; it only rescales h). H is in nats, from the
recorded log-probabilities with all other tokens counted as one. The threshold h is chosen on the tuning prompts
among quantiles of sqrt(H) there.
"""

from __future__ import annotations

import numpy as np

from tuner.yardsticks.base import Arena, Contestant, PositionRule, best_of
from tuner.yardsticks.chains import at_tuning, chains

SVIP = "SVIP"
QUANTILES = np.linspace(0.0, 1.0, 21)


def svip(arena: Arena) -> Contestant | None:
    """None when the grid records no chains."""
    found = chains(arena)
    if found is None:
        return None
    root = np.sqrt(found.entropy)
    thresholds = sorted({float(f"{value:.3g}") for value in np.quantile(at_tuning(arena, root), QUANTILES)})
    rules: list[Contestant] = [PositionRule(SVIP, f"h = {h:g}", found.stopped(root > h), arena) for h in thresholds]
    return best_of(rules, arena)
