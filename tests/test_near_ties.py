"""Near ties: how close two logits must be before a difference between two outputs is no bug, by dtype."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from profiles.errors import LosslessError
from tests.fakes import FakeModel, fake_pair, fake_prompt
from tuner.lossless import first_divergence, near_tie, require_equal


@pytest.mark.parametrize(
    ("dtype", "largest", "tolerance"),
    [
        ("float32", 40.0, 1e-5),
        ("float32", 0.1, 1e-5),
        ("bfloat16", 16.0, 0.5),  # numbers of [16, 32) are 1/8 apart
        ("bfloat16", 31.9, 0.5),
        ("bfloat16", 32.0, 1.0),
        ("float16", 16.0, 0.0625),
    ],
)
def test_a_near_tie_is_a_few_spacings_of_the_dtype(dtype: str, largest: float, tolerance: float) -> None:
    assert near_tie(dtype, largest) == tolerance


class Planted(FakeModel):
    """Logits that are known: 20 for token 3, `margin` less for token 5, far less for the others."""

    def __init__(self, margin: float, dtype: str) -> None:
        super().__init__(1, 0.0)
        self.dtype, self._margin = dtype, margin

    def logits(self, rows: list[tuple[int, int]]) -> np.ndarray:
        values = np.zeros(24, dtype=np.float32)
        values[3], values[5] = 20.0, 20.0 - self._margin
        return values


@pytest.mark.parametrize(
    ("dtype", "margin", "verdict"),
    [
        ("bfloat16", 0.0, "tie"),
        ("bfloat16", 0.125, "tie"),
        ("bfloat16", 0.625, "bug"),  # five spacings
        ("bfloat16", 8.0, "bug"),
        ("float16", 0.03125, "tie"),
        ("float16", 0.125, "bug"),
        ("float32", 0.0, "tie"),
        ("float32", 0.03125, "bug"),
    ],
)
def test_a_divergence_is_judged_by_what_its_dtype_can_tell(dtype: str, margin: float, verdict: str) -> None:
    pair, prompt = replace(fake_pair(), target=Planted(margin, dtype)), fake_prompt(2)
    found = first_divergence(pair, prompt, [3, 3, 3], [3, 5, 3])
    assert found is not None and (found.position, found.margin, found.verdict) == (1, margin, verdict)
    if verdict == "tie":
        assert require_equal(pair, prompt, [3, 3, 3], [3, 5, 3], "planted") is False
    else:
        with pytest.raises(LosslessError, match=f"a near tie in {dtype} is below"):
            require_equal(pair, prompt, [3, 3, 3], [3, 5, 3], "planted")
