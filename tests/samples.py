"""A small, complete profile that needs no model: what the artefact tests turn and twist."""

from __future__ import annotations

from profiles.measurement import PASS_KINDS, CostTable, HostTime, Interval, PassKind, PassTime, PolicyResult
from profiles.policy import PolicySource, Tier
from profiles.policy_profile import (
    Evidence,
    ModelRecord,
    PairRecord,
    PolicyProfile,
    Provenance,
    Regime,
    SearchRecord,
)
from profiles.provenance import Fingerprint
from runtime.policy.compile import compile_policy

MACHINE = Fingerprint(
    device="cpu",
    device_arch="x86_64",
    backend="onnx",
    backend_version="1.32.0",
    dtype="float32",
    cpu="Test CPU",
    cores=2,
    threads=2,
    simd=("avx2",),
    versions={"torch": "2.13.0"},
    host="somewhere",
)
TWO = Interval(median=2.0, low=1.9, high=2.1, mark="measured", prompts=40)


def pair_record(**changes: str) -> PairRecord:
    model = ModelRecord(source="pairs/x", revision=None, config_digest="c" * 64, weights_digest="w" * 64)
    draft = model.model_copy(update={"weights_digest": changes.pop("draft_weights", "d" * 64)})
    record = PairRecord(name="tiny", target=model, draft=draft, tokenizer_digest="t" * 64, processor_digest="p" * 64)
    return record.model_copy(update=changes)


def sample_profile() -> PolicyProfile:
    source = PolicySource(name="tuned", edges=(0.2,), tiers=(Tier(depth=4, nodes=4), Tier(depth=2, width=2, nodes=3)))

    def pass_time(kind: PassKind, n: int, context: int) -> PassTime:
        return PassTime(kind=kind, n=n, context=context, time_ns=1e5, p10_ns=9e4, p90_ns=2e5, samples=9)

    table = CostTable(
        mark="measured",
        threads=2,
        passes=tuple(pass_time(k, n, c) for k in PASS_KINDS for n in (1, 2) for c in (10, 90)),
        host=HostTime(plain_ns=1e4, round_ns=2e4, level_ns=5e3, rounds=100),
    )
    return PolicyProfile(
        name="tiny-cpu",
        pair=pair_record(),
        regime=Regime(modalities=("image",), context_max=200),
        policy=compile_policy(source, (1, 2, 4, 8), 200),
        source=source,
        shipped="adaptive",
        reason="it was faster",
        evidence=Evidence(
            cost_table=table,
            cost_ratio=table.cost_ratio(),
            curves=(),
            results=(
                PolicyResult(
                    name="tuned",
                    tiers=("4,1,4", "2,2,3"),
                    verdict="adaptive",
                    acceptance_length=2.5,
                    rounds=100,
                    speedup_replayed=2.02,
                    speedup_measured=TWO,
                ),
            ),
            shipped_name="tuned",
            speedup=TWO,
            request_speedup=TWO,
            gain_over_static=Interval(median=1.1, low=1.05, high=1.15, mark="measured", prompts=40),
            speedup_replayed=2.02,
            prediction_error=0.01,
            acceptance_length=2.5,
            lossless_tokens=5000,
        ),
        fingerprint=MACHINE,
        provenance=Provenance(
            config_digest="a" * 64,
            data_digest="b" * 64,
            trace_digest="e" * 64,
            split_prompts={"tune": 50, "select": 20, "report": 40},
            search=SearchRecord(
                sampler="optuna.TPESampler",
                sampler_settings={"multivariate": True},
                seed=7,
                trials=100,
                trial_log_digest="f" * 64,
                space_digest="0" * 64,
            ),
            versions={"torch": "2.13.0"},
            command_line="sage_tune tune runs/x",
        ),
    )
