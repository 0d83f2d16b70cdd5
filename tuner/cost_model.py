"""The cost model: what a pass takes at a context, read from a cost table. It interpolates context and nothing else."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiles.errors import EnvelopeError
from profiles.measurement import PASS_KINDS, CostTable, PassKind
from tuner.drafts import Ints

Floats = npt.NDArray[np.float64]


class CostModel:
    """Interpolates a cost table over context; sizes are never interpolated, contexts never extrapolated."""

    def __init__(self, table: CostTable) -> None:
        self.table = table
        self._contexts = np.array(table.contexts(), dtype=np.float64)
        self._ns: dict[tuple[str, int], Floats] = {
            (kind, n): np.array(
                [p.time_ns for p in sorted(table.passes, key=lambda p: p.context) if (p.kind, p.n) == (kind, n)]
            )
            for kind in PASS_KINDS
            for n in table.sizes(kind)
        }

    def pass_ns(self, kind: PassKind, n: int, context: Ints) -> Floats:
        """[...] time of a pass of n tokens over `context` cached rows. Raises EnvelopeError outside the table."""
        curve = self._ns.get((kind, n))
        if curve is None:
            raise EnvelopeError(f"{kind} passes of {n} tokens were not measured; have {self.table.sizes(kind)}")
        if context.size and (context.min() < self._contexts[0] or context.max() > self._contexts[-1]):
            raise EnvelopeError(
                f"contexts {context.min()}..{context.max()} leave the measured "
                f"{self._contexts[0]:.0f}..{self._contexts[-1]:.0f}"
            )
        times: Floats = np.interp(context, self._contexts, curve)
        return times

    def measured_size(self, kind: PassKind, n: int) -> int:
        """The smallest measured size of at least n tokens. Raises EnvelopeError beyond the largest."""
        size = next((size for size in self.table.sizes(kind) if size >= n), None)
        if size is None:
            raise EnvelopeError(f"{kind} passes of {n} tokens were not measured; have {self.table.sizes(kind)}")
        return size


def cold_extra(extra_ns: tuple[float, ...], index: Ints) -> Floats:
    """Extra time of the round with this index in its output; nothing once the caches are warm."""
    padded = np.array([*extra_ns, 0.0])
    return padded[np.minimum(index, len(extra_ns))]
