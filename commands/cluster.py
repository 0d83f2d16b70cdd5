"""Work spread over a Ray cluster: recorder shards and search workers.

The driver plans and, at the end, goes on as it would alone: what the workers did is then on record. All nodes need
sage_tune, the pair's files, and places that they share: the trace (`data.trace_url`) and the study (`--storage`).
On one machine (`--ray local`) the run folder is such a place.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from profiles.config import TuneConfig
from profiles.errors import BadInput, HardwareMissing, SageError
from profiles.measurement import CostTable
from tuner.progress import Progress
from tuner.run_folder import RunFolder, trace_location
from tuner.timing import Budget

LOCAL = "local"
OBJECT_STORE_BYTES = 128 << 20
"""Ray's store of results on a local cluster; ours are a few numbers each."""
ANSWER_S = 10.0


def record_on_cluster(
    config: TuneConfig, folder: Path, address: str, shards: int, budget: Budget, progress: Progress
) -> None:
    """Record every sample of a configuration as `shards` tasks. `config` must be resolved (`tuner.plan`).

    Raises BadInput when what the workers recorded cannot be seen from here.
    """
    from tuner.profiling import recording_share
    from tuner.trace_store import TraceStore

    location = _anywhere(trace_location(config, folder))
    text = _with_absolute_paths(config).model_dump_json()
    left_s = _seconds(recording_share(budget))
    arguments = [(text, location, f"{index}/{shards}", left_s) for index in range(1, shards + 1)]
    with _cluster(address) as ray:
        gpus = 0 if config.gpu == "cpu" else 1
        recorded = _run(ray, _record_shard, arguments, config.threads, gpus, "recording shards", progress)
    unseen = TraceStore(location).missing([name for names in recorded for name in names])
    if unseen:
        raise BadInput(
            f"the cluster recorded {len(unseen)} samples that are not in {location}: its nodes do not share that "
            "place; set data.trace_url to one that they do"
        )


def search_on_cluster(
    config: TuneConfig, run: RunFolder, address: str, workers: int, budget: Budget, progress: Progress
) -> None:
    """Run the study's trials with `workers` tasks. Raises BadInput when they cannot be seen from here."""
    from tuner.study_storage import finished_trials

    # passed on its own: a configuration that is written down has no password
    place = _anywhere(run.study_place(config))
    text, costs = config.model_dump_json(), run.costs().model_dump_json()
    arguments = [(text, place, _anywhere(run.trace), costs, _seconds(budget))] * workers
    with _cluster(address) as ray:
        done = _run(ray, _search, arguments, 1, 0, "searching on the cluster", progress)
    studies = {part["study"] for part in done}
    if len(studies) > 1:
        raise BadInput(f"the cluster's nodes made {len(studies)} studies of one: their releases or packages differ")
    if finished_trials(place, done[0]["study"]) < sum(part["ran"] for part in done):
        raise BadInput(
            "the cluster ran trials that are not in the study's storage as it is seen from here: its nodes do not "
            "share that place; give one that they do with --storage"
        )


def _record_shard(config_text: str, location: str, shard_text: str, seconds: float | None) -> list[str]:
    """A worker: ids of the samples of one shard that are on record."""
    from commands.opening import open_configured
    from tuner.profiling import manifest_of, samples_of
    from tuner.shards import parse_shard
    from tuner.traces import Recorder

    # Ray places the tasks of a node; all of them keeping to its first cores would be slower
    pair, config, _ = open_configured(TuneConfig.model_validate_json(config_text), keep_to_cores=False)
    samples, shard = samples_of(config, pair.spec), parse_shard(shard_text)
    mine = [sample for sample in samples if shard.holds(sample.id)]
    recorder = Recorder(pair, location, manifest_of(pair, config, samples))
    recorder.record_all(mine, Budget(seconds), config.data.skip_bad)
    missing = set(recorder.store.missing([sample.id for sample in mine]))
    return [sample.id for sample in mine if sample.id not in missing]


def _search(config_text: str, place: str, trace: str, costs: str, seconds: float | None) -> dict[str, Any]:
    """A worker: contributes trials to one study until it is complete."""
    from commands.options import err
    from tuner.policy_search import search_only

    config, table = TuneConfig.model_validate_json(config_text), CostTable.model_validate_json(costs)
    return search_only(config, place, trace, table, Budget(seconds), Progress(err)).document()


@contextmanager
def _cluster(address: str) -> Iterator[Any]:
    """Ray, connected; `local` starts a cluster on this machine's cores. Shut down in any case.

    Raises HardwareMissing when Ray is not installed or nothing answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise HardwareMissing("--ray needs the extra 'ray': pip install 'sage_tune[ray]'") from None
    from tuner.machine import core_count

    options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": "ERROR"}
    if address == LOCAL:
        options |= {
            "address": LOCAL,
            "num_cpus": core_count(),
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
        }
    else:
        _require_answer(address)
        options["address"] = address
    try:
        try:
            ray.init(**options)
        except (ConnectionError, OSError, ValueError, RuntimeError) as error:
            raise HardwareMissing(f"--ray {address}: no cluster answers ({_first_line(error)})") from error
        yield ray
    finally:
        ray.shutdown()


def _require_answer(address: str) -> None:
    """Raises HardwareMissing when nobody listens at `HOST:PORT`: Ray would ask again for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return  # a name such as `auto`, which Ray looks up itself
    try:
        if not port.isdecimal():
            raise OSError(f"'{port}' is no port")
        socket.create_connection((host, int(port)), timeout=ANSWER_S).close()
    except OSError as error:
        raise HardwareMissing(f"--ray {address}: no cluster answers ({error})") from error


def _run(
    ray: Any,
    work: Callable[..., Any],
    arguments: list[tuple[Any, ...]],
    cpus: int,
    gpus: int,
    what: str,
    progress: Progress,
) -> list[Any]:
    """Results of `work` for every tuple of arguments. The first error ends it, as the error it was.

    Raises HardwareMissing when no node is large enough: Ray would wait for one for ever.
    """
    needs = {"CPU": cpus, "GPU": gpus}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(node.get(kind, 0) >= count for kind, count in needs.items()) for node in nodes):
        sizes = ", ".join(f"{node.get('CPU', 0):.0f} CPUs and {node.get('GPU', 0):.0f} GPUs" for node in nodes)
        raise HardwareMissing(f"a task needs {cpus} CPUs and {gpus} GPUs on one node; the cluster has {sizes}")
    task = ray.remote(num_cpus=cpus, num_gpus=gpus)(work)
    waiting = [task.remote(*values) for values in arguments]
    results = []
    with progress.task(what, len(waiting)) as advance:
        try:
            while waiting:
                ready, waiting = ray.wait(waiting, num_returns=1)
                results += ray.get(ready)
                advance(len(ready))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, SageError):
                raise type(error.cause)(f"on the cluster: {error.cause}") from None
            raise
        except ray.exceptions.RayError as error:
            raise HardwareMissing(f"the cluster lost a task: {_first_line(error)}; run the command again") from error
        finally:
            for left in waiting:
                ray.cancel(left, force=True)
    return results


def _with_absolute_paths(config: TuneConfig) -> TuneConfig:
    """A worker starts in another folder: paths of files are given in full."""
    model = str(Path(config.model).resolve()) if Path(config.model).is_file() else config.model
    path = config.data.path and str(Path(config.data.path).resolve())
    return config.model_copy(update={"model": model, "data": config.data.model_copy(update={"path": path})})


def _anywhere(place: str | Path) -> str:
    """A path in full, a URL as it is."""
    from profiles.locations import JOURNAL_PREFIX

    text = str(place).removeprefix(JOURNAL_PREFIX)
    return text if "://" in text else str(Path(text).resolve())


def _seconds(budget: Budget) -> float | None:
    return None if budget.left_s == float("inf") else budget.left_s


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
