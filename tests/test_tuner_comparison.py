"""A comparison: who runs when, which times count, and what the models' own runs are held against."""

from __future__ import annotations

import numpy as np
import pytest

from profiles.errors import LosslessError
from profiles.policy import PolicySource, SignalSpec, Tier
from runtime.policy.compile import compile_policy
from tests.simulated import PROMPT, arm
from tests.strategies import VERIFY_SIZES
from tests.test_replay import PAIR, PROMPTS, costs, record  # noqa: F401  # a fixture
from tuner.comparison import Arm, Job, Run, aligned, calm_ns, compare, is_settled
from tuner.live import LiveRunner
from tuner.outcomes import Record
from tuner.replay import Replay
from tuner.timing import Budget

ARMS = [arm(name, Tier(depth=2, nodes=2)) for name in "abc"]


class Script:
    """Runs of two rounds that take the times they are told; remembers who ran when."""

    def __init__(self, times: dict[tuple[str, int], list[float]] | None = None, ties: int | None = None) -> None:
        self.order: list[str] = []
        self._times, self._ties = times or {}, ties

    def __call__(self, arm: Arm, job: Job) -> Run:
        self.order.append(f"{arm.name}{job.sample}")
        queue = self._times.get((arm.name, job.sample))
        time_ns = queue.pop(0) if queue else 100.0
        return Run(rounds_ns=[time_ns, 10.0], prefill_ns=7.0, tokens=5, near_tie=job.sample == self._ties)


def jobs(count: int) -> list[Job]:
    return [Job(i, PROMPT, 1) for i in range(count)]


def test_arms_run_abba_and_take_turns_at_being_first() -> None:
    script = Script()
    compare(script, ARMS, jobs(2), 1, Budget(None))
    assert script.order == ["a0", "b0", "c0", "a0", "b0", "c0", "c0", "b0", "a0", "b1", "c1", "a1", "a1", "c1", "b1"]


def test_a_prompt_whose_fastest_time_was_seen_once_is_decoded_again_by_all_arms() -> None:
    # the first time of prompt 0 is the warm-up's; both prompts see their 100 once before they are decoded again
    script = Script({("b", 0): [999, 300, 100, 300, 300], ("b", 1): [300, 300, 300, 100]})
    found = compare(script, ARMS, jobs(2), 2, Budget(None))
    assert script.order.count("b0") == 1 + 8, "100 was seen a second time: once more, not twice"
    assert script.order.count("c0") == 1 + 8 and script.order.count("b1") == 8
    assert found.decode_ns["b"].tolist() == [110, 110] and found.request_ns["b"].tolist() == [117, 117]
    assert [len(runs) for runs in found.runs["a"]] == [8, 8]


def test_a_spent_budget_keeps_three_prompts_and_decodes_none_again() -> None:
    script = Script({("b", 0): [999, 300, 100]})
    found = compare(script, ARMS, jobs(9), 1, Budget(0.0))
    assert found.samples == [0, 1, 2] and script.order.count("b0") == 3


def test_an_empty_split_compares_nothing() -> None:
    script = Script()
    assert compare(script, ARMS, [], 1, Budget(None)).samples == [] and script.order == []


def test_near_ties_are_counted_and_say_nothing_about_speed() -> None:
    found = compare(Script(ties=1), ARMS, jobs(3), 1, Budget(None))
    assert found.samples == [0, 2] and found.near_ties == 6 and found.tokens == 3 * 3 * 2 * 5
    assert len(found.decode_ns["a"]) == len(found.runs["a"]) == 2


def test_rounds_hit_by_foreign_load_are_left_out_where_the_same_round_was_calm() -> None:
    quiet = np.array([[100.0, 50.0], [120.0, 40.0], [110.0, 45.0]])
    assert calm_ns(quiet) == pytest.approx(quiet.sum(axis=1).mean()), "nothing is left out: the mean of the runs"
    hit = quiet * np.array([[1.0, 3.0], [3.0, 1.0], [1.0, 1.0]])
    assert calm_ns(hit) == pytest.approx((100 + 110) / 2 + (40 + 45) / 2)
    assert is_settled(hit) and is_settled(quiet) and not is_settled(hit[:2]), "two runs, each round calm once"


def test_runs_with_other_rounds_are_compared_as_wholes() -> None:
    runs = [Run([30.0, 70.0], 1.0, 3), Run([50.0, 30.0, 40.0], 1.0, 3)]
    assert aligned(runs).tolist() == [[100.0], [120.0]]
    assert aligned(runs[:1] * 2).tolist() == [[30.0, 70.0]] * 2


def live(record: Record, policy_tier: Tier) -> tuple[LiveRunner, Arm, list[Job]]:  # noqa: F811
    source = PolicySource(name="x", signal=SignalSpec(top_k=8), tiers=(policy_tier,))
    policy = compile_policy(source, VERIFY_SIZES, record.context_max)
    order = [int(s.id[1:]) for s in record.samples]
    made = [Job(i, PROMPTS[which][0], PROMPTS[which][1]) for i, which in enumerate(order)]
    return LiveRunner(PAIR, Replay(record, costs()), np.arange(len(made))), Arm("x", source, policy), made


def test_live_runs_are_held_against_the_record_and_its_replay(record: Record) -> None:  # noqa: F811
    runner, drafting, made = live(record, Tier(depth=3, width=2, nodes=6))
    found = compare(runner, [drafting], made, 1, Budget(None))
    assert found.rounds_equal_share == 1.0 and found.near_ties == 0
    assert found.tokens >= 2 * sum(len(s.output) for s in record.samples)
    assert (found.request_ns["x"] > found.decode_ns["x"]).all()


def test_other_tokens_than_the_record_are_a_bug(record: Record) -> None:  # noqa: F811
    runner, drafting, made = live(record, Tier(depth=3, width=2, nodes=6))
    wrong = Job(made[0].sample, made[1].prompt, made[1].max_new_tokens)
    with pytest.raises(LosslessError, match="x: output differs from plain decoding at token"):
        runner(drafting, wrong)
