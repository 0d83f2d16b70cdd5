"""The shape of a model's text side: what a pass has to read and to multiply, without any weight being loaded."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from profiles.frozen import Frozen

Count = Annotated[int, Field(ge=1)]


class ModelShape(Frozen):
    """Sizes as the model's own `config.json` states them (its `text_config` where it has one)."""

    hidden: Count
    layers: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    intermediate: Count
    """Width of a layer's gated MLP; of one expert's where there are experts."""
    vocab: Count
    experts: Annotated[int, Field(ge=0)] = 0
    """Experts of a layer, 0 for a dense model."""
    experts_per_token: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _routed(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, got {self.heads} and {self.kv_heads}")
        if not self.experts_per_token <= self.experts or (self.experts > 0) != (self.experts_per_token > 0):
            raise ValueError(
                f"experts and experts_per_token go together, got {self.experts} and {self.experts_per_token}"
            )
        return self

    def dense_parameters(self) -> int:
        """Weights that every pass reads: attention, the MLP or the router, and the output head. The input
        embedding is left out, since a pass reads only its tokens' rows; norms and biases are negligible."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        mlp = self.hidden * self.experts if self.experts else 3 * self.hidden * self.intermediate
        return self.layers * (attention + mlp) + self.vocab * self.hidden

    def expert_parameters(self) -> int:
        """Weights of one expert in every layer, 0 for a dense model."""
        return 3 * self.hidden * self.intermediate * self.layers if self.experts else 0

    def read_parameters(self, n: int) -> float:
        """Weights that a pass of n tokens reads. Of E experts with k per token, n tokens that choose alike often
        and independently reach E (1 - (1 - k/E)^n) on average; real routing is less even and reaches fewer."""
        if not self.experts:
            return float(self.dense_parameters())
        missed: float = (1.0 - self.experts_per_token / self.experts) ** n
        return self.dense_parameters() + self.expert_parameters() * self.experts * (1.0 - missed)

    def multiplied_parameters(self) -> int:
        """Weights that one token is multiplied with."""
        return self.dense_parameters() + self.expert_parameters() * self.experts_per_token

    def kv_values(self) -> int:
        """Values in one row of the key/value cache, all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim
