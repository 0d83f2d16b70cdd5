"""A study loses nothing: killed workers, many workers, changed spaces, trials that fail."""

from __future__ import annotations

import inspect
import itertools
import json
import random
import tempfile
from pathlib import Path

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from profiles.config import SearchConfig
from profiles.errors import BadInput
from profiles.policy import CompiledPolicy, PolicySource
from profiles.store import kernel_lock
from tests.study_worker import BASELINES, baselines, contribute, processes, run_worker, small_replay, worker
from tuner import sampling
from tuner.replay import Replay
from tuner.search import FAILED_REASON, WORKER, Search
from tuner.space import SearchSpace, Suggester
from tuner.study_import import IMPORTED_FROM, outline
from tuner.study_storage import Journal, JournalStudy, _cut_torn_record
from tuner.timing import Budget

SETTINGS = SearchConfig(trials=52, signals=("entropy",), max_bins=3)


@pytest.fixture(scope="module")
def replay() -> Replay:
    return small_replay()


def trials_of(search: Search) -> list[FrozenTrial]:
    return search._study.get_trials()


def content(search: Search) -> list[tuple[object, ...]]:
    return [(t.number, t.params, t.values, t.state) for t in trials_of(search)]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, replay: Replay) -> list[tuple[object, ...]]:
    search = worker(tmp_path_factory.mktemp("study") / "journal", SETTINGS, replay=replay)
    assert search.run(baselines(search), Budget(None)) == 52
    return content(search)


def assert_complete(search: Search, count: int) -> None:
    """Exactly the numbers 0 to count - 1, all finished, no parameters twice, every baseline where it belongs."""
    trials = trials_of(search)
    assert [t.number for t in trials] == list(range(count))
    assert all(t.state in (TrialState.COMPLETE, TrialState.FAIL) for t in trials)
    keys = [json.dumps(t.params, sort_keys=True) for t in trials]
    assert len(set(keys)) == count, "a parameter set was run twice"
    sources = [search.source_of(t) for t in trials[: len(BASELINES)]]
    assert [s.tiers for s in sources] == [(tier,) for tier in BASELINES]


def test_killed_at_random_moments_a_search_equals_the_uninterrupted_one(
    tmp_path: Path, replay: Replay, uninterrupted: list[tuple[object, ...]]
) -> None:
    place, kills, chance = tmp_path / "journal", 0, random.Random(11)
    for _ in range(6):
        process = processes().Process(target=run_worker, args=(str(place), SETTINGS))
        process.start()
        size = place.stat().st_size if place.exists() else 0
        grown = size + chance.randint(200, 12_000)
        while process.is_alive() and (not place.exists() or place.stat().st_size < grown):
            process.join(0.002)
        kills += process.is_alive()
        process.kill()
        process.join()
    search = worker(place, SETTINGS, replay=replay)
    left = [t.state for t in trials_of(search)]
    assert search.run(baselines(search), Budget(None)) == 52
    assert kills >= 4 and left.count(TrialState.RUNNING) <= 1
    assert_complete(search, 52)
    assert content(search) == uninterrupted


def test_a_search_goes_on_from_within_a_trial(
    tmp_path: Path, replay: Replay, uninterrupted: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after any number of a trial's parameters, before and after the sampler's start-up trials."""
    asked, suggest = iter(range(10_000)), optuna.Trial._suggest

    def interrupted(self: optuna.Trial, name: str, distribution: object) -> object:
        value = suggest(self, name, distribution)  # type: ignore[arg-type]
        if next(asked) % 37 == 36:
            raise KeyboardInterrupt
        return value

    stops = 0
    with monkeypatch.context() as patch:
        patch.setattr(optuna.Trial, "_suggest", interrupted)
        for _ in range(100):
            search = worker(tmp_path / "journal", SETTINGS, replay=replay)
            try:
                search.run(baselines(search), Budget(None))
                break
            except KeyboardInterrupt:
                stops += 1
    assert stops > 10
    assert content(search) == uninterrupted


def test_planted_a_sampler_with_one_stream_is_found_out(
    tmp_path: Path, replay: Replay, uninterrupted: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Optuna does by itself: one generator per process, seeded once. Resumed, it draws other trials."""
    monkeypatch.setattr(sampling.TrialSampler, "_stream", lambda self, number, name, liar: self._joint)
    for trials in (20, 52):
        search = worker(tmp_path / "journal", SETTINGS.model_copy(update={"trials": trials}), replay=replay)
        search.run(baselines(search), Budget(None))
    drawn = [t.params for t in trials_of(search)]
    assert drawn[:5] == [entry[1] for entry in uninterrupted[:5]]
    with pytest.raises(AssertionError):
        assert_complete(search, 52)


class Rounds(Budget):
    """Expires after a number of questions, not after a time."""

    def __init__(self, rounds: int) -> None:
        super().__init__(None)
        self._left = rounds

    @property
    def expired(self) -> bool:
        self._left -= 1
        return self._left < 0


def test_planted_a_worker_that_is_thought_alive_is_waited_for(
    tmp_path: Path, replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "journal"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Search, "_objective", lambda self, source: (_ for _ in ()).throw(KeyboardInterrupt))
        contribute(worker(place, SETTINGS, replay=replay))
    monkeypatch.setattr(JournalStudy, "alive", lambda self, name: True)
    search = worker(place, SETTINGS.model_copy(update={"trials": 4}), replay=replay)
    assert search.run(baselines(search), Rounds(6)) == 3, "the dead worker's trial was not left to it"
    monkeypatch.undo()
    longer = worker(place, SETTINGS.model_copy(update={"trials": 4}), replay=replay)
    assert longer.run(baselines(longer), Budget(None)) == 4


@given(st.lists(st.binary(max_size=12), max_size=6), st.binary(max_size=30))
def test_only_what_has_no_end_is_cut_off(lines: list[bytes], torn: bytes) -> None:
    whole = b"".join(line.replace(b"\n", b"") + b"\n" for line in lines)
    with tempfile.TemporaryFile() as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr("tuner.study_storage.TAIL_BYTES", 4)
        file.write(whole + torn.replace(b"\n", b""))
        _cut_torn_record(file)
        assert file.tell() == len(whole)
        file.seek(0)
        assert file.read() == whole


def test_a_half_written_record_is_cut_off(
    tmp_path: Path, replay: Replay, uninterrupted: list[tuple[object, ...]]
) -> None:
    place = tmp_path / "journal"
    found = worker(place, SETTINGS.model_copy(update={"trials": 20}), replay=replay)
    found.run(baselines(found), Budget(None))
    with place.open("ab") as file:
        file.write(b'{"op_code":5,"worker_id":"half')
    search = worker(place, SETTINGS, replay=replay)
    search.run(baselines(search), Budget(None))
    assert content(search) == uninterrupted
    assert all(json.loads(line) for line in place.read_text().splitlines())


def test_eight_workers_share_one_journal(tmp_path: Path, replay: Replay) -> None:
    settings, place = SETTINGS.model_copy(update={"trials": 80}), tmp_path / "journal"
    team = [processes().Process(target=run_worker, args=(str(place), settings)) for _ in range(8)]
    for process in team:
        process.start()
    for process in team:
        process.join(300)
    assert [process.exitcode for process in team] == [0] * 8
    search = worker(place, settings, replay=replay)
    assert_complete(search, 80)
    assert len({t.user_attrs[WORKER] for t in trials_of(search)}) > 1, "one worker did it all"


def test_a_killed_worker_of_several_is_replaced_by_the_others(tmp_path: Path, replay: Replay) -> None:
    place = tmp_path / "journal"
    team = [processes().Process(target=run_worker, args=(str(place), SETTINGS)) for _ in range(3)]
    for process in team:
        process.start()
    while not place.exists() or place.stat().st_size < 20_000:
        team[0].join(0.002)
    for process in team[:2]:
        process.kill()
    for process in team:
        process.join(300)
    assert team[2].exitcode == 0
    search = worker(place, SETTINGS, replay=replay)
    assert_complete(search, 52)


def test_workers_wait_for_a_living_one_and_not_for_a_dead_one(tmp_path: Path) -> None:
    ours, other = JournalStudy(tmp_path / "journal"), JournalStudy(tmp_path / "journal")
    assert ours.alive(other.worker)
    name = other.worker
    del other
    assert not ours.alive(name) and not ours.alive("never was")
    with ours.exclusive("study"), ours.exclusive("another study"):
        pass


def test_a_changed_space_takes_over_what_is_legal(tmp_path: Path, replay: Replay) -> None:
    place = tmp_path / "journal"
    old = worker(place, SETTINGS, replay=replay)
    old.run(baselines(old), Budget(None))
    bins = [t.params["bins"] for t in trials_of(old)]
    settings = SETTINGS.model_copy(update={"max_bins": 2, "trials": 10})
    new = worker(place, settings, replay=replay)
    assert new.run(baselines(new), Budget(None)) == 10 == new.done
    assert (new.imported.trials, new.imported.skipped) == (sum(b <= 2 for b in bins), bins.count(3))
    taken = [t for t in trials_of(new) if IMPORTED_FROM in t.user_attrs]
    assert [t.number for t in taken] == list(range(new.imported.trials)), "they come before its own"
    by_origin = {f"{old.name}/{t.number}": t for t in trials_of(old)}
    for trial in taken:
        origin = by_origin[trial.user_attrs[IMPORTED_FROM]]
        assert (trial.params, trial.values) == (origin.params, origin.values)
        assert new._objective(new.source_of(trial)) == trial.values[0], "a value that was taken over is not true"
    own = trials_of(new)[len(taken) :]
    assert [new.source_of(t).tiers for t in own[:5]] == [(tier,) for tier in BASELINES]
    settings_of_record = new.record().sampler_settings
    assert settings_of_record["imported_trials"] == len(taken) and new.record().trials == 10
    again = worker(place, settings, replay=replay)
    assert again.run(baselines(again), Budget(None)) == 10 and content(again) == content(new)
    assert f"{len(taken)} trials" in again.imported.summary()
    third = worker(place, settings.model_copy(update={"seed": 8}), replay=replay)
    third.run(baselines(third), Budget(None))
    distinct = {
        json.dumps(t.params, sort_keys=True) for t in [*trials_of(old), *trials_of(new)] if t.params["bins"] < 3
    }
    assert third.imported.trials == len(distinct), "what two studies know is taken over once"


def test_a_trial_with_a_parameter_that_the_space_no_longer_has_does_not_fit(tmp_path: Path, replay: Replay) -> None:
    old = worker(tmp_path / "journal", SETTINGS.model_copy(update={"trials": 12}), replay=replay)
    old.run(baselines(old), Budget(None))
    settings = SETTINGS.model_copy(update={"trials": 6, "history": False})
    new = worker(tmp_path / "journal", settings, replay=replay)
    assert new.run(baselines(new), Budget(None)) == 6
    assert (new.imported.trials, new.imported.skipped) == (0, 12)


def test_taking_over_goes_on_where_it_was_killed(
    tmp_path: Path, replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "journal"
    found = worker(place, SETTINGS.model_copy(update={"trials": 20}), replay=replay)
    found.run(baselines(found), Budget(None))
    settings = SETTINGS.model_copy(update={"trials": 8, "seed": 9})
    added, add_trial = iter(range(1000)), optuna.Study.add_trial

    def killed(self: optuna.Study, trial: FrozenTrial) -> None:
        if next(added) == 7:
            raise KeyboardInterrupt
        add_trial(self, trial)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(optuna.Study, "add_trial", killed)
        found = worker(place, settings, replay=replay)
        found.run(baselines(found), Budget(None))
    search = worker(place, settings, replay=replay)
    assert search.run(baselines(search), Budget(None)) == 8 and search.imported.trials == 20
    assert len(trials_of(search)) == 28


def test_another_cost_table_takes_over_policies_but_no_values(tmp_path: Path, replay: Replay) -> None:
    place = tmp_path / "journal"
    old = worker(place, SETTINGS, replay=replay)
    old.run(baselines(old), Budget(None))
    new = worker(place, SETTINGS, costs="others", replay=replay)
    new.run(baselines(new), Budget(None))
    assert (new.imported.trials, new.imported.skipped, new.imported.parameters) == (0, 0, 8)
    best = sorted(trials_of(old)[len(BASELINES) :], key=lambda t: (-t.values[0], t.number))
    assert trials_of(new)[len(BASELINES)].params == best[0].params
    assert_complete(new, 52)


def test_another_release_with_another_space_is_another_study(
    tmp_path: Path, replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = worker(tmp_path / "journal", SETTINGS, replay=replay)
    monkeypatch.setattr("tuner.space.MAX_DROP", 2)
    after = worker(tmp_path / "journal", SETTINGS, replay=replay)
    assert before.name != after.name
    assert outline(after.space) != [] and outline(after.space) == outline(after.space)


@pytest.mark.parametrize("kind", ["tpe", "random"])
def test_failing_trials_do_not_poison_the_sampler(
    kind: str, tmp_path: Path, replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the space raises; the optimum of a known function is found in the other half."""
    suggest = SearchSpace.suggest

    def half(self: SearchSpace, trial: Suggester) -> PolicySource:
        source = suggest(self, trial)
        if source.tiers[0].depth % 2:
            raise ValueError("an odd depth\nis impossible here")
        return source

    def speedup(self: Replay, policy: CompiledPolicy, samples: object) -> float:
        tier = policy.tiers[policy.table[0][1]]
        if tier.width == 4:
            return float("inf")
        return 10.0 - (tier.depth - 6) ** 2 - (tier.width - 2) ** 2 - 4 * abs(tier.stop - 0.2)

    monkeypatch.setattr(SearchSpace, "suggest", half)
    monkeypatch.setattr(Replay, "speedup", speedup)
    settings = SearchConfig.model_validate({"trials": 150, "max_bins": 1, "history": False, "sampler": kind})
    search = worker(tmp_path / "journal", settings, replay=replay)
    assert search.run([], Budget(None)) == 150
    trials = trials_of(search)
    failed = [t for t in trials if t.state == TrialState.FAIL]
    reasons = {t.user_attrs[FAILED_REASON] for t in failed}
    assert reasons == {"an odd depth", "the replayed speedup is inf"} and len(failed) > 20
    scored = [t for t in trials if t.state == TrialState.COMPLETE]
    assert all(np.isfinite(t.values[0]) for t in scored)
    best = search.source_of(max(scored, key=lambda t: t.values[0])).tiers[0]
    if kind == "tpe":
        assert (best.depth, best.width) == (6, 2) and abs(best.stop - 0.2) <= 0.1
        early, late = (np.mean([t.values[0] for t in part]) for part in (scored[:40], scored[-40:]))
        assert late > early + 1, "the sampler did not move towards the optimum"
    assert search.record().sampler == {"tpe": "optuna.TPESampler", "random": "optuna.RandomSampler"}[kind]


def test_no_default_of_the_installed_sampler_goes_unrecorded() -> None:
    recorded = sampling.sampler_settings("tpe")
    arguments = set(inspect.signature(TPESampler.__init__).parameters) - {"self", "seed"}
    assert set(recorded) == arguments | {"stream", "window", "window_refresh"}
    assert not set(sampling.TPE_SETTINGS) & set(sampling.TPE_FIXED)
    inner = sampling.TrialSampler("tpe", 1, "study", {})._stream(0, "x", liar=True)
    assert isinstance(inner, TPESampler)
    found = inner._parzen_estimator_parameters
    assert found.prior_weight == recorded["prior_weight"]
    assert found.consider_magic_clip == recorded["consider_magic_clip"]
    assert found.consider_endpoints == recorded["consider_endpoints"]
    assert found.weights is optuna.samplers._tpe.sampler.default_weights
    assert inner._gamma is None and not inner._warn_independent_sampling


@pytest.mark.parametrize("kind", ["tpe", "random"])
def test_streams_differ_by_seed_study_trial_and_parameter(kind: sampling.SamplerKind) -> None:
    study, uniform = optuna.create_study(), FloatDistribution(0.0, 1.0)
    study.add_trials([create_trial(state=TrialState.RUNNING) for _ in range(2)])

    def draw(seed: int, name: str, number: int, parameter: str) -> float:
        sampler = sampling.TrialSampler(kind, seed, name, {})
        return float(sampler.sample_independent(study, study.trials[number], parameter, uniform))

    draws = [draw(*place) for place in itertools.product((1, 2), ("a", "b"), (0, 1), ("x", "y"))]
    assert len(set(draws)) == 16
    assert draws == [draw(*place) for place in itertools.product((1, 2), ("a", "b"), (0, 1), ("x", "y"))]


def test_the_sampler_and_its_seed_are_part_of_the_study(tmp_path: Path, replay: Replay) -> None:
    places = [
        worker(tmp_path / "journal", SETTINGS.model_copy(update=change), replay=replay).name
        for change in ({}, {"sampler": "random"}, {"seed": 8}, {"trials": 9}, {"storage": "elsewhere"})
    ]
    assert len(set(places)) == 3 and places[0] == places[3] == places[4]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("mysql://u:secret@h/db", r"postgresql://USER@HOST/DATABASE, got 'mysql://u:\*\*\*@h/db'"),
        ("postgres://u:secret@h/db", "postgresql://USER"),
        ("journal:", "needs a path"),
    ],
)
def test_an_unknown_storage_is_refused_without_its_password(place: str, message: str, replay: Replay) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        worker(place, SETTINGS, replay=replay)
    assert "secret" not in str(caught.value)


def test_a_journal_that_cannot_be_written_is_one_clear_error(tmp_path: Path, replay: Replay) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="file"):
        worker(tmp_path / "file" / "journal", SETTINGS, replay=replay)


def test_the_journal_is_optunas_own_format(tmp_path: Path, replay: Replay) -> None:
    """Optuna's tools read it, and the lock is not left behind."""
    place = tmp_path / "journal"
    search = worker(place, SETTINGS.model_copy(update={"trials": 3}), replay=replay)
    search.run(baselines(search), Budget(None))
    plain = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(place)))
    study = optuna.load_study(study_name=search.name, storage=plain)
    assert [t.params for t in study.trials] == [t.params for t in trials_of(search)]
    with kernel_lock(tmp_path / "journal.locks" / "append"):
        assert list(Journal(place, tmp_path / "other").read_logs(0))
