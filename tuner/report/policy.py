"""The policy section of a report: the map from signal and history to tier, and what decides within a round."""

from __future__ import annotations

from profiles.growth import GO_ON, GrowthTree
from profiles.policy import HISTORY_STATES, CompiledPolicy, Tier
from tuner.report.view import Cell, PolicyMap, Section, Table

SHADES = 5


def policy_map(policy: CompiledPolicy) -> Section:
    """Signal bin and history state to tier, and what else decides within a round."""
    states = HISTORY_STATES if policy.history else ("any history",)
    deepest = max(policy.max_depth, 1)

    def cell(index: int) -> Cell:
        tier = policy.tiers[index]
        return Cell(tier.label(), 0 if tier.depth == 0 else max(1, round(SHADES * tier.depth / deepest)))

    bounds = (0.0, *policy.edges, 1.0)
    rows = tuple(
        (f"{bounds[i]:.3g} – {bounds[i + 1]:.3g}", tuple(cell(c) for c in (row if policy.history else row[:1])))
        for i, row in enumerate(policy.table)
    )
    signal = policy.signal
    how = f"{signal.kind} over the {signal.top_k} best tokens" if "entropy" in signal.kind else signal.kind
    how += ", of the round before" if signal.lag else ""
    how += f", exponential mean with weight {signal.smoothing:g}" if signal.smoothing else ""
    text = [
        f"Signal: {how}. A cell is depth,width,nodes; darker is deeper. Beyond a context of {policy.context_max} "
        f"tokens the safe tier ({policy.tiers[policy.safe].label()}) is used.",
    ]
    if not policy.edges:
        text.append("One bin: the signal is recorded and chooses nothing.")
    if policy.history:
        h = policy.history
        text.append(
            f"History: mean of accepted draft tokens over {h.window} drafting rounds, low below {h.low:g}, high above "
            f"{h.high:g}."
        )
    if policy.pruning.label():
        text.append(f"The draft reads a part of the visual tokens: {policy.pruning.label()}.")
    tables = [_tiers_table(policy)]
    if policy.growth is not None:
        text.append("A decision tree is asked after every drafted level; its rules stand below.")
        tables.append(_growth_table(policy.growth))
    return Section("policy", "The policy", tuple(text), policy=PolicyMap(states, rows), tables=tuple(tables))


def _tiers_table(policy: CompiledPolicy) -> Table:
    def gates(tier: Tier) -> str:
        parts = [f"stop {', '.join(f'{g:.3g}' for g in tier.gates)}"] if any(tier.gates) else []
        parts += [f"keep {', '.join(f'{g:.3g}' for g in tier.keep)}"] if any(tier.keep) else []
        return "; ".join(parts) or "–"

    rows = tuple(
        (str(i), tier.label(), tier.rule.kind if tier.depth else "–", gates(tier), "safe" if i == policy.safe else "")
        for i, tier in enumerate(policy.tiers)
    )
    return Table("tiers", ("tier", "depth,width,nodes", "drafting rule", "gates", ""), rows)


def _growth_table(tree: GrowthTree) -> Table:
    """Every leaf with the questions on its way."""
    rows: list[tuple[str, str]] = []

    def walk(node: int, asked: tuple[str, ...]) -> None:
        if node < 0:
            leaf = tree.leaves[-1 - node]
            what = "draft another level" if leaf == GO_ON else f"verify {leaf} tokens, root counted"
            rows.append((" and ".join(asked) or "always", what))
            return
        name, threshold = tree.features[node], f"{tree.thresholds[node]:.3g}"
        walk(tree.left[node], (*asked, f"{name} ≤ {threshold}"))
        walk(tree.right[node], (*asked, f"{name} > {threshold}"))

    walk(0 if tree.features else -1, ())
    return Table(f"growth tree, {len(tree.leaves)} leaves", ("when", "then"), tuple(rows))
