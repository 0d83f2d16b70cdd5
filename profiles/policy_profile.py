"""The frozen artefact: `PolicyProfile`, one JSON file that holds a policy, its evidence and its provenance.

`digest` covers the decisions (pair, regime, policy): two profiles with the same digest decode alike.
`evidence_digest` covers everything else, so a flipped byte anywhere is found on load (`profiles.store`). A signature
covers both digests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from profiles.counters import Snapshot
from profiles.frozen import Frozen
from profiles.gate import Gate
from profiles.measurement import CostTable, Curve, Interval, PolicyResult
from profiles.policy import CompiledPolicy, PolicySource
from profiles.provenance import Fingerprint, canonical_json, digest
from profiles.sampling import AS_MADE, SamplingRegime

SCHEMA_VERSION: Final = 4
DECISION_KEYS: Final = ("schema_version", "pair", "regime", "policy")
"""What `digest` covers; `evidence_digest` covers the rest."""
DIGEST_KEYS: Final = ("digest", "evidence_digest")
SEAL_KEYS: Final = (*DIGEST_KEYS, "signature")
"""What the digests do not cover: themselves, and a signature over them."""


class ModelRecord(Frozen):
    """One model of the pair: where it came from and what it was."""

    source: str
    revision: str | None
    config_digest: str
    weights_digest: str


class PairRecord(Frozen):
    name: str
    target: ModelRecord
    draft: ModelRecord
    tokenizer_digest: str
    processor_digest: str


class Regime(Frozen):
    """Where the profile holds. Outside it the runtime uses the safe tier (`profiles.admission`)."""

    modalities: tuple[Literal["text", "image", "video"], ...]
    sampling: SamplingRegime = AS_MADE.regime()
    context_max: Annotated[int, Field(ge=1)]
    batch: Literal[1] = 1


class SearchRecord(Frozen):
    """How the winner was found, in full: enough to run the search again."""

    sampler: str
    sampler_settings: dict[str, Any]
    seed: int
    trials: int
    trial_log_digest: str
    space_digest: str


class Provenance(Frozen):
    config_digest: str
    data_digest: str
    trace_digest: str
    split_prompts: dict[str, int]
    search: SearchRecord
    versions: dict[str, str]
    command_line: str


class Evidence(Frozen):
    """The numbers behind the decision. Every one can be recomputed from the run folder."""

    cost_table: CostTable
    cost_ratio: float
    curves: tuple[Curve, ...]
    results: tuple[PolicyResult, ...]
    shipped_name: str
    """Which of `results` ships."""
    speedup: Interval
    """Measured speedup of the shipped policy over plain decoding, on prompts that neither search nor selection saw."""
    request_speedup: Interval
    """The same for whole requests: vision and prompt prefills of target and draft included."""
    gain_over_static: Interval
    """Measured speedup of the tuned policy over the best static tier, on the same prompts."""
    speedup_replayed: float
    prediction_error: float
    """`replayed / measured - 1` of the shipped policy on the report prompts."""
    prediction_bound: float = 0.1
    """Beyond this the cost table does not describe the machine as it was during the comparison."""
    acceptance_length: float
    lossless_tokens: Annotated[int, Field(ge=0)]
    """Tokens of the confirmation that were compared with plain decoding, all equal."""
    near_ties: Annotated[int, Field(ge=0)] = 0
    baseline: Snapshot | None = None
    """Counters of the shipped policy on the report prompts, one run of each: what `drift` compares with."""


class Signature(Frozen):
    """Who vouches for a profile: a signature over both digests (`signed_bytes`)."""

    algorithm: Literal["ed25519"] = "ed25519"
    public_key: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """The signer, in hex."""
    value: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]
    """In hex."""


def signed_bytes(digests: Mapping[str, str]) -> bytes:
    """What a signature covers: the digests of decisions and evidence, so everything that is written down."""
    return b"sage_tune profile " + canonical_json({key: digests[key] for key in DIGEST_KEYS}).encode()


class PolicyProfile(Frozen):
    schema_version: Literal[4] = SCHEMA_VERSION
    name: str
    pair: PairRecord
    regime: Regime
    policy: CompiledPolicy
    source: PolicySource
    shipped: Literal["adaptive", "static", "off"]
    reason: str
    """One sentence: why this kind of policy was shipped."""
    evidence: Evidence
    fingerprint: Fingerprint
    provenance: Provenance
    gate: Gate | None = None
    """What `sage_tune check` compares with; None in a profile from before there was a gate."""
    digest: str = ""
    evidence_digest: str = ""
    signature: Signature | None = None

    def decisions_digest(self) -> str:
        return digest(self.model_dump(mode="json", include=set(DECISION_KEYS)))

    def rest_digest(self) -> str:
        return digest(self.model_dump(mode="json", exclude={*DECISION_KEYS, *SEAL_KEYS}))

    def sealed(self) -> PolicyProfile:
        """The same profile with both digests filled in. A signature over other digests is dropped."""
        digests = {"digest": self.decisions_digest(), "evidence_digest": self.rest_digest()}
        kept = digests == {"digest": self.digest, "evidence_digest": self.evidence_digest}
        return self.model_copy(update={**digests, "signature": self.signature if kept else None})
