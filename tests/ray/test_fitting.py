"""A fit on a cluster is the local streaming fit, bit for bit, whatever happens to its workers."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

import ttamer as tt
from support.traces import answering_trace, chain_trace
from ttamer.errors import ArgumentError, TraceError
from ttamer.fitted.quantiser import Quantiser
from ttamer.fitting import streaming
from ttamer.fitting.counts import Counts
from ttamer.trace.files import read_batches
from ttamer.trace.trace import Trace

pytestmark = pytest.mark.usefixtures("cluster")
OPTIONS = {"states": 6, "tradeoffs": [0.5, 0.9, 0.99], "order": "skip"}


@pytest.fixture
def fit_parquet():
    from ttamer.ray import fit_parquet

    return fit_parquet


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(streaming, "BATCH_ROWS", 700)


def priced_trace(rows: int, seed: int = 0) -> Trace:
    """Costs on every row, so that their sums depend on the order of adding."""
    trace = answering_trace(rows, seed=seed)
    costs = np.random.default_rng(seed).lognormal(sigma=3.0, size=(rows, 3))
    return Trace(trace.spec, trace.confidence, prediction=trace.prediction, label=trace.label,
                 classes=trace.classes, cost=costs)  # fmt: skip


def saved(ladder, folder) -> bytes:
    tt.save(ladder, folder / "policy.ttamer")
    return (folder / "policy.ttamer").read_bytes()


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("sample_rows", [900, 50_000])
def test_the_file_saved_is_that_of_a_local_fit(
    fit_parquet, tmp_path, monkeypatch, together, sample_rows
):
    from ttamer.ray import fitting

    monkeypatch.setattr(fitting, "BLOCKS_PER_TASK", together)
    path = tmp_path / "log.parquet"
    trace = priced_trace(16_000)
    trace.write(path)
    local = streaming.fit_file(path, trace.spec, sample_rows=sample_rows, **OPTIONS)
    spread = fit_parquet(path, trace.spec, sample_rows=sample_rows, **OPTIONS)
    assert saved(spread, tmp_path) == saved(local, tmp_path)
    assert spread.fitted.rows == 16_000


def test_adding_up_in_another_order_would_show(tmp_path):
    path = tmp_path / "log.parquet"
    priced_trace(16_000).write(path)
    batches = list(read_batches(path, rows=700))
    quantiser = Quantiser.fit(batches[0].confidence, states=6, method="quantile")
    counts = [Counts.of(batch, quantiser, [(-1, 0), (-1, 1), (-1, 2)]) for batch in batches]
    forward, back = sum(counts[1:], counts[0]), sum(counts[-2::-1], counts[-1])
    assert forward.cost.tobytes() != back.cost.tobytes()


def test_several_files_are_one_log(fit_parquet, tmp_path):
    traces = [priced_trace(rows, seed=rows) for rows in (1500, 701, 2600)]
    paths = [tmp_path / f"{number}.parquet" for number in range(3)]
    for trace, path in zip(traces, paths, strict=True):
        trace.write(path)
    spec = traces[0].spec

    def batches():
        return chain.from_iterable(read_batches(path, spec, rows=700) for path in paths)

    local = saved(streaming.fit_batches(batches, sample_rows=1000, **OPTIONS), tmp_path)
    assert saved(fit_parquet(paths, spec, sample_rows=1000, **OPTIONS), tmp_path) == local
    assert saved(fit_parquet(tmp_path, spec, sample_rows=1000, **OPTIONS), tmp_path) == local
    other = fit_parquet(paths[::-1], spec, sample_rows=1000, **OPTIONS)
    assert saved(other, tmp_path) != local


@pytest.mark.parametrize(
    ("name", "belief"), [("_sampled", "full"), ("_counted", "full"), ("_counted", "calibrated")]
)
def test_a_worker_killed_in_its_work_changes_nothing(
    cluster, fit_parquet, tmp_path, monkeypatch, name, belief
):
    from support.ray_models import killed_once
    from ttamer.ray import fitting

    path = tmp_path / "log.parquet"
    trace = priced_trace(16_000)
    trace.write(path)
    options = {**OPTIONS, "sample_rows": 5000, "belief": belief}
    local = saved(streaming.fit_file(path, trace.spec, **options), tmp_path)
    task = cluster.remote(**getattr(fitting, name)._default_options)(killed_once)
    mark = tmp_path / "killed"

    class Killed:
        """The same work; but the first worker to finish it is killed before it returns."""

        @staticmethod
        def remote(*arguments):
            return task.remote(str(mark), name, *arguments)

    monkeypatch.setattr(fitting, name, Killed)
    spread = fit_parquet(path, trace.spec, **options)
    assert mark.exists()
    assert saved(spread, tmp_path) == local


def test_what_is_done_first_is_taken_in_its_turn(cluster, tmp_path):
    from support.ray_models import wait_for_mark
    from ttamer.ray.cluster import in_order

    task = cluster.remote(wait_for_mark)
    # The first piece waits for the mark of the second, which therefore is done first.
    pieces = [(str(tmp_path), 0, 1), (str(tmp_path), 1, None)]
    assert list(in_order(lambda piece: task.remote(*piece), pieces)) == [0, 1]


def test_few_rows_get_a_hint(fit_parquet, tmp_path, caplog):
    trace = chain_trace(2000)
    trace.write(tmp_path / "log.parquet")
    fit_parquet(tmp_path / "log.parquet", trace.spec, states=3, tradeoffs=[0.9])
    (record,) = [record for record in caplog.records if record.name.startswith("ttamer.ray")]
    assert "2000 rows on 2 workers: a local fit is probably faster" in record.getMessage()


def refusal(fit, *arguments, **options) -> str:
    with pytest.raises((TraceError, ArgumentError)) as caught:
        fit(*arguments, **options)
    return str(caught.value)


def test_what_a_local_fit_refuses_is_refused_in_the_same_words(fit_parquet, tmp_path):
    path = tmp_path / "log.parquet"
    trace = answering_trace(3000)
    label = trace.label.copy()
    confidence = trace.confidence.copy()

    def write(**fields):
        parts = {"prediction": trace.prediction, "label": label, "classes": trace.classes}
        Trace(trace.spec, confidence, **{**parts, **fields}).write(path)

    # Labels and predictions that never speak of the same class.
    write(label=label + 4, classes=(*trace.classes, "w", "x", "y", "z"))
    text = refusal(fit_parquet, path, trace.spec)
    assert text == refusal(streaming.fit_file, path, trace.spec)
    assert "no label is ever predicted" in text

    # Where answers have losses, labels are not compared.
    write(
        label=label + 4,
        classes=(*trace.classes, "w", "x", "y", "z"),
        raw_loss=trace.wrong().astype(float),
    )
    options = {"belief": "calibrated", "states": 4}
    assert fit_parquet(path, trace.spec, **options).fitted.rows == 3000

    # A label that is missing, in the middle of the file.
    gap = label.copy()
    gap[2222] = -1
    write(label=gap)
    text = refusal(fit_parquet, path, trace.spec)
    assert text == refusal(streaming.fit_file, path, trace.spec)
    assert "row 2222" in text
    assert "\n" not in text

    write()
    assert refusal(fit_parquet, path, trace.spec, states=0) == refusal(
        streaming.fit_file, path, trace.spec, states=0
    )
