"""Ladders of all kinds of fit: one list of promises over one catalogue of traces."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest

from ttamer import datasets
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError, TraceWarning
from ttamer.fitting.fits import fit
from ttamer.fitting.fitted import FitRecord
from ttamer.fitting.points import Mix
from ttamer.fitting.promises import were_fitted_to
from ttamer.fitting.replay import alone_paid, paid
from ttamer.stats.envelope import lower_envelope
from ttamer.trace.trace import Trace

pytestmark = pytest.mark.filterwarnings("ignore::ttamer.errors.TraceWarning")


def simulated(rows=600, seed=0, gaps=0.0, prompts=False, **more):
    """Three models whose confidence says something, on inputs that are easy or hard."""
    rng = np.random.default_rng(seed)
    hard = rng.random(rows)
    skill = np.array([0.5, 0.8, 1.1])
    right = rng.random((rows, 3)) < 1 / (1 + np.exp(-6 * (skill - hard[:, None])))
    noise = rng.normal(0, 0.5, (rows, 3))
    confidence = 1 / (1 + np.exp(-(3 * (right - 0.5) + noise)))
    label = rng.integers(4, size=rows)
    wrong = (label[:, None] + 1 + rng.integers(3, size=(rows, 3))) % 4
    prediction = np.where(right, label[:, None], wrong).astype(str).astype(object)
    if gaps:
        absent = rng.random((rows, 3)) < gaps
        absent[: rows // 3] = False
        confidence[absent], prediction[absent] = np.nan, None
    words = np.where(hard > 0.5, "a long and winding question", "hi")
    return Trace.from_arrays(
        CascadeSpec.of({"small": 1.0, "middle": 3.0, "large": 9.0}),
        confidence,
        prediction=prediction,
        label=label.astype(str),
        **({"prompt": words.tolist()} if prompts else {}),
        **more,
    )


TRACES = {
    "models": simulated,
    "gaps": lambda rows=600, seed=0: simulated(rows, seed, gaps=0.3),
    "prompts": lambda rows=600, seed=0: simulated(rows, seed, prompts=True),
    "exits": lambda rows=600, seed=0: datasets.load("minilm-imdb").take(
        slice(seed * rows, (seed + 1) * rows)
    ),
}
BELIEFS = ("answers", "markov", "threshold")


@pytest.fixture(scope="module")
def ladders():
    made = {}

    def ladder(kind, belief):
        key = kind, belief
        if key not in made:
            hold_out = 0.0 if belief == "threshold" else 0.3
            made[key] = fit(TRACES[kind](), belief=belief, hold_out=hold_out)
        return made[key]

    return ladder


each = pytest.mark.parametrize(
    ("kind", "belief"), [(kind, belief) for kind in TRACES for belief in BELIEFS]
)


@each
def test_choices_cost_no_more_than_the_best_node(ladders, kind, belief):
    ladder = ladders(kind, belief)
    points = ladder.points
    limit = points.alone_cost[points.best] * (1 + 1e-9)
    assert ladder.default().cost <= limit
    for at_most in (0.01, 0.1, 0.4):
        mixture = ladder.for_error(at_most)
        assert mixture.cost <= limit
        assert mixture.promise.certified or mixture.single_node or ladder.spec.kind == "exits"


@each
def test_a_drop_against_any_node_is_certified_and_costs_no_more(ladders, kind, belief):
    ladder = ladders(kind, belief)
    for number, name in enumerate(ladder.spec.names):
        mixture = ladder.for_drop(0.02, against=name)
        assert mixture.promise.certified
        assert mixture.cost <= ladder.points.alone_cost[number] * (1 + 1e-9)


@each
def test_budgets_are_kept_on_the_estimates(ladders, kind, belief):
    ladder = ladders(kind, belief)
    cheapest = float(ladder.points.costs.min())
    for budget in (cheapest, 1.5 * cheapest, 1e9):
        assert ladder.for_budget(budget).cost <= budget * (1 + 1e-9)
    with pytest.raises(ArgumentError, match="the cheapest costs"):
        ladder.for_budget(cheapest / 2)
    promise = ladder.for_budget(float(ladder.points.costs.max()), exceeded_at_most=0.1).promise
    assert promise.kind == "budget"


@each
def test_estimates_are_near_what_new_rows_show(ladders, kind, belief):
    ladder = ladders(kind, belief)
    rows = TRACES[kind](2000 if kind != "exits" else 600, 2)
    rows = rows.take(~np.isnan(rows.loss).any(axis=1))
    every = np.arange(len(rows))
    points = ladder.points
    costs, errors = [], []
    for played in ladder.play_all(rows):
        errors.append(rows.loss[every, played.answer].mean())
        costs.append(paid(played.asked, rows).mean())
    # Folds choose other policies at a price, of other costs: frontiers are compared.
    corners = lower_envelope(points.cost, points.error)
    expected = np.interp(costs, points.cost[corners], points.error[corners])
    assert np.abs(expected - errors).max() < 0.08
    assert abs(points.alone_error - rows.loss.mean(axis=0)).max() < 0.08


@each
def test_a_node_alone_is_what_the_trace_says(ladders, kind, belief):
    ladder, rows = ladders(kind, belief), TRACES[kind](60, 1)
    rows = rows.take(~np.isnan(rows.loss).any(axis=1))
    for number, name in enumerate(rows.names):
        played = ladder.alone(name).play(rows)
        assert (played.answer == number).all()
        assert paid(played.asked, rows) == pytest.approx(alone_paid(rows)[:, number])


@pytest.mark.parametrize("belief", ["answers", "markov"])
def test_an_exit_alone_costs_what_passing_those_before_it_costs(belief):
    rows = TRACES["exits"](300)
    reach = dict.fromkeys(rows.names[:-1], 0.2)
    spec = CascadeSpec.of(dict.fromkeys(rows.names, 1.0), kind="exits", reach=reach)
    ladder = fit(rows.with_spec(spec), belief=belief)
    assert ladder.points.alone_cost == pytest.approx(1 + 0.2 * np.arange(len(rows.names)))


@each
def test_a_node_alone_has_its_name(ladders, kind, belief):
    ladder = ladders(kind, belief)
    for name in ladder.spec.names:
        assert ladder.alone(name).setting == f"{name} alone"


def test_thresholds_claim_no_chance_and_no_gain():
    turn = fit(TRACES["exits"](), belief="threshold").at(0.9).session(max_cost=0.4)
    turn.observe(confidence=0.6)
    assert turn.explain().why == "the answer of 'layer1' is not confident enough: ask 'layer2'"
    assert not turn.explain().beliefs
    assert not turn.explain().gains
    turn.observe(confidence=0.6)
    assert "not confident enough, and asking on would cost more than is left" in turn.explain().why
    turn = fit(TRACES["exits"](), belief="threshold").at(0.9).session()
    turn.observe(confidence=0.95)
    assert turn.explain().why == "the answer of 'layer1' is confident enough: stop"


@each
def test_tables_and_pictures_print(ladders, kind, belief):
    ladder = ladders(kind, belief)
    lines = ladder.table().splitlines()
    assert len(lines) == 1 + len(ladder.points.corners)
    assert ladder.plot().axes[0].get_xlabel().startswith("cost per input")
    page = ladder._repr_html_()
    assert "FittedLadder(" in page
    says = "differ in nothing else is assumed" if belief == "answers" else "others are not used"
    assert (says in page) == (kind == "gaps")
    frame = ladder.to_frame()
    assert len(frame) == len(ladder) + len(ladder.spec)
    assert frame["on_frontier"].sum() == len(ladder.points.corners)


@each
def test_a_record_is_equal_before_and_after_saving(ladders, kind, belief):
    record = ladders(kind, belief).record
    assert msgspec.json.decode(msgspec.json.encode(record), type=FitRecord) == record
    raked = kind == "gaps" and belief == "answers"
    assert record.weighting == ("raked" if raked else "none")
    assert record.inputs == (("prompt",) if kind == "prompts" and belief == "answers" else ())


def test_tradeoffs_are_prices_per_full_cost(ladders):
    ladder = ladders("models", "answers")
    assert ladder.at(1.0) is ladder[-1]
    assert ladder.at(0.0) is ladder[0]
    policy = ladder.at(0.7)
    price = policy.rule.price * ladder.fitted.full_cost
    assert policy.tradeoff == pytest.approx(1 / (1 + price))
    worth = ladder.for_mistake_cost(50.0)
    assert worth is ladder.at(50 / (50 + ladder.fitted.full_cost))


def test_where_the_last_node_is_right_by_definition_the_default_may_drop_a_point():
    rows = TRACES["exits"](600)
    last = fit(rows.with_spec(dataclasses.replace(rows.spec, target="last")))
    assert (last.allowed_drop, fit(rows, belief="threshold").allowed_drop) == (0.01, 0.0)
    assert last.points.alone_error[-1] == 0
    assert last.default().error <= 0.01
    assert last.default().cost < last.points.alone_cost[-1]


def test_rows_fitted_to_certify_nothing():
    rows = simulated(400)
    ladder = fit(rows, hold_out=0.2, seed=3)
    assert were_fitted_to(ladder.record, rows)
    assert not were_fitted_to(ladder.record, simulated(400, seed=1))
    with pytest.raises(ArgumentError, match="fitted to 320 of these 400"):
        ladder.for_error(0.2, on=rows)
    with pytest.raises(ArgumentError, match="a promise needs rows"):
        fit(rows).for_error(0.2)


def test_groups_are_not_split():
    group = np.repeat(np.arange(150), 4)
    rows = simulated(600, group=group.tolist())
    ladder = fit(rows, hold_out=0.25)
    assert ladder.record.held_out % 4 == 0
    assert ladder.held.rows == ladder.record.held_out // 4
    assert ladder.for_error(0.4).promise.rows == ladder.held.rows


def test_a_log_with_chances_is_weighted():
    rng = np.random.default_rng(0)
    rows = simulated(3000, seed=5)
    complete = rng.random(3000) < 0.3
    confidence, chance = rows.confidence.copy(), np.full((3000, 3), 0.3)
    chance[:, 0] = 1.0
    confidence[~complete, 1:] = np.nan
    prediction = np.array([*rows.classes, None], object)[rows.prediction]
    prediction[np.isnan(confidence)] = None
    label = np.array(rows.classes, object)[rows.label]
    log = Trace.from_arrays(
        rows.spec, confidence, prediction=prediction, label=label, chance=chance
    )
    ladder = fit(log, hold_out=0.5)
    assert ladder.record.weighting == "chance"
    assert ladder.held.weight is not None
    promise = ladder.for_error(0.6).promise
    assert promise.certified
    assert len(ladder.held) == 1500


def test_without_a_node():
    ladder = fit(simulated(), without="large")
    assert ladder.spec.names == ("small", "middle")
    assert ladder.record.without == ("large",)


def test_mixtures_draw_by_key():
    ladder = fit(simulated(), belief="threshold")
    mixture = ladder.mixed(Mix(3, 40, 0.3), seed=1)
    drawn = [mixture.drawn(number) is mixture.expensive for number in range(1000)]
    assert drawn == mixture.draws(1000).tolist()
    assert abs(np.mean(drawn) - 0.3) < 0.01
    assert mixture.drawn("a") is mixture.drawn("a")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"belief": "full"}, 'is now "answers"'),
        ({"belief": "none"}, 'is now "markov"'),
        ({"hold_out": 1.0}, "hold_out is 1.0"),
        ({"belief": "threshold", "hold_out": 0.2}, "leave hold_out"),
        ({"tradeoffs": [0.5]}, "leave tradeoffs out"),
        ({"states": 4}, 'states: only belief="markov"'),
        ({"inputs": ["prompt"]}, "the trace has no input 'prompt'"),
        ({"without": "tiny"}, "tiny"),
        (
            {"embedders": {"vector": "mini 2"}},
            "names 'vector', which is no vector .*there are none",
        ),
        ({"belief": "markov", "max_nodes": 2}, 'max_nodes: only belief="answers"'),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ArgumentError, match=message):
        fit(simulated(60), **options)


@pytest.mark.parametrize("belief", ["answers", "markov"])
def test_one_group_gives_no_estimates(belief):
    rows, two = simulated(60, group=["g"] * 60), simulated(60, group=["g", "h"] * 30)
    for log, hold_out in ((rows, 0.0), (two, 0.3)):
        with pytest.raises(ArgumentError, match="too few groups"):
            fit(log, belief=belief, hold_out=hold_out)
    with pytest.raises(ArgumentError, match="held out whole"):
        fit(rows, belief=belief, hold_out=0.3)
    assert len(fit(rows, belief="threshold")) == 64


def test_exits_are_not_limited_in_number():
    with pytest.raises(ArgumentError, match="max_nodes limits separate models"):
        fit(TRACES["exits"](60), max_nodes=2)


def test_too_few_complete_rows_are_refused():
    rows = simulated(60)
    confidence = rows.confidence.copy()
    confidence[5:, 2] = np.nan
    prediction = np.array([*rows.classes, None], object)[rows.prediction]
    prediction[np.isnan(confidence)] = None
    label = np.array(rows.classes, object)[rows.label]
    log = Trace.from_arrays(rows.spec, confidence, prediction=prediction, label=label)
    with pytest.raises(ArgumentError, match="at least 10 rows on which every node answered"):
        fit(log)
    assert issubclass(TraceWarning, UserWarning)


def test_latencies_are_weighed():
    rows = simulated(800)
    slow = np.tile([1.0, 5.0, 50.0], (800, 1))
    label = np.array(rows.classes, object)[rows.label]
    prediction = np.array(rows.classes, object)[rows.prediction]
    log = Trace.from_arrays(
        rows.spec, rows.confidence, prediction=prediction, label=label, latency=slow
    )
    ladder = fit(log)
    spec = dataclasses.replace(rows.spec, latency_weight=1.0)
    with pytest.raises(ArgumentError, match="the trace has no latency of small"):
        fit(rows.with_spec(spec))
    weighed = fit(log.with_spec(spec))
    assert weighed.record.latency_weight == 1.0
    assert (
        weighed.at(0.8).play(log).asked[:, 2].mean() <= ladder.at(0.8).play(log).asked[:, 2].mean()
    )


def test_a_file_larger_than_memory_is_fitted_by_a_sample(tmp_path):
    rows, path = simulated(900), tmp_path / "log.parquet"
    rows.write(path)
    whole = fit(Trace.read(path, sample=900), belief="threshold")
    assert whole.record.trace_digest == rows.digest
    sampled = fit(Trace.read(path, sample=400))
    assert (sampled.record.rows, sampled.record.sampled) == (900, 400)
    with pytest.raises(ArgumentError, match="fitted to 900 of these 900"):
        sampled.for_error(0.3, on=rows)
    with pytest.raises(ArgumentError, match="fitted to"):  # the same sample again
        sampled.for_error(0.3, on=Trace.read(path, sample=400))
    part = fit(Trace.read(path, sample=400), hold_out=0.2)
    assert part.for_error(0.6).promise.certified
    with pytest.raises(ArgumentError, match="fitted to"):
        part.for_error(0.6, on=Trace.read(path, sample=400))


@pytest.mark.parametrize("belief", BELIEFS)
def test_a_policy_shows_its_table_of_indices(ladders, belief):
    policy = ladders("models", belief).at(0.8)
    turn = policy.session()
    first = turn.next
    turn.observe(confidence=0.5, prediction="1")
    if belief == "answers":
        shown = policy.indices[first,]
        assert turn.explain().indices == shown
        assert (turn.next is not None) == (turn.explain().best > min(shown.values()))
        assert all(f"{index:.2%}" in policy.table() for index in shown.values())
        assert all(f"&gt; {index:.2%}" in policy.plot() for index in shown.values() if index < 1)
    else:
        assert policy.indices == {}
        assert policy.plot().startswith("<svg")
