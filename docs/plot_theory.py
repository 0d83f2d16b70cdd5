"""The two figures of theory.md. From the root of the repository, with the extra `plots`:

    python -m docs.plot_theory [FOLDER] [svg|png]

writes theory_bounds and theory_depth into FOLDER, which is docs/ by default, so the committed files are made anew.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from tuner import theory

# Okabe and Ito's palette, told apart by every common kind of colour vision; dashes differ as well
BLUE, VERMILLION, GREY, BLACK = "#0072B2", "#D55E00", "#D9D9D9", "#000000"
CLAIM = {"color": VERMILLION, "linestyle": (0, (5, 2)), "linewidth": 2}
TRUTH = {"color": BLUE, "linestyle": "-", "linewidth": 2}
STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",  # text stays text: small files that can be searched
    "svg.hashsalt": "theory",  # the same input gives the same bytes
    "path.simplify_threshold": 0.2,
}
K = 10
DRAFT_COSTS = (0.02, 0.05, 0.1)
DEEPEST = 64


def bounds() -> Figure:
    """What the renormalised top-1 probability can be at a confidence, and what was claimed."""
    alpha = np.linspace(0, 1, 201)
    least = [theory.minimal_top1(a, K) for a in alpha]
    # the most entropy at a top-1 probability has the rest spread evenly
    top1 = np.linspace(1 / K, 1, 201)
    alpha_of_most = [theory.confidence([p, *[(1 - p) / (K - 1)] * (K - 1)], K) for p in top1]
    most = np.interp(alpha, alpha_of_most, top1)

    figure = Figure(figsize=(7, 4.4), layout="constrained")
    axes = figure.add_subplot()
    axes.fill_between(alpha, least, most, color=GREY, linewidth=0, label="what p₁ can be")
    axes.plot(alpha, [theory.paper_lemma_4_3(a, K) for a in alpha], **CLAIM, label="claim: Lemma 4.3")
    axes.plot(alpha, least, **TRUTH, label="true minimum")
    axes.plot(
        alpha,
        [theory.top1_bound(a, K) for a in alpha],
        color=BLACK,
        linestyle=(0, (1, 1.5)),
        linewidth=2,
        label="true bound k^(α−1)",
    )
    pair = theory.confidence([0.5, 0.5, *[0.0] * (K - 2)], K)
    axes.plot([pair], [0.5], "o", color=BLACK, markersize=6)
    axes.annotate(
        f"two tokens at ½ each:\nα = {pair:.2f}, p₁ = 0.50,\nclaimed ≥ {theory.paper_lemma_4_3(pair, K):.2f}",
        (pair, 0.5),
        xytext=(0.74, 0.18),
        arrowprops={"arrowstyle": "-", "shrinkB": 5},
    )
    axes.set(xlabel=f"confidence α = 1 − H / log k,  k = {K}", ylabel="top-1 probability p₁", xlim=(0, 1), ylim=(0, 1))
    axes.legend(frameon=False, loc="upper left")
    return figure


def depths() -> Figure:
    """Depth by the theorem and by the rule, and what the theorem's depth costs, for several draft costs."""
    acceptance = np.linspace(0.3, 0.9, 241)
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.subplots(2, len(DRAFT_COSTS), sharex=True, sharey="row", height_ratios=(2, 1))
    for column, cost in zip(axes.T, DRAFT_COSTS, strict=True):
        best = [theory.optimal_depth(p, [cost] * DEEPEST, 1.0) for p in acceptance]
        claimed = [max(theory.paper_theorem_4_7(p, cost, 1.0), 0) for p in acceptance]
        share = [_rate(p, c, cost) / _rate(p, b, cost) for p, b, c in zip(acceptance, best, claimed, strict=True)]
        column[0].step(acceptance, claimed, **CLAIM, label="claim: Theorem 4.7")
        column[0].step(acceptance, best, **TRUTH, label="true optimum of Eq 6")
        column[0].set_title(f"draft level: {cost:g} of a target pass", fontsize=10)
        column[1].plot(acceptance, 100 * np.array(share), **CLAIM)
        column[1].axhline(100, **TRUTH)
        column[1].set_xlabel("acceptance p per draft token")
    axes[0, 0].set(ylabel="depth of the chain", ylim=(0, 38), xlim=(0.3, 0.905))
    axes[1, 0].set(ylabel="speed at that depth,\n% of the best", ylim=(80, 102))
    axes[0, 0].legend(frameon=False, loc="upper left")
    return figure


def _rate(acceptance: float, depth: int, cost: float) -> float:
    return theory.speedup(theory.expected_accepted(acceptance, depth), cost * depth, 1.0)


def main(folder: Path, suffix: str) -> None:
    with mpl.rc_context(STYLE):
        for name, draw in (("theory_bounds", bounds), ("theory_depth", depths)):
            path = folder / f"{name}.{suffix}"
            draw().savefig(path, dpi=110, metadata={"Date": None} if suffix == "svg" else None)
            print(f"{path}  {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent, sys.argv[2] if len(sys.argv) > 2 else "svg")
