"""Fitted policies in files: what was saved comes back, and forged fits are refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given

import ttamer as tt
from support.examples import examples
from support.traces import answering_trace, chain_trace, passing_trace, small_traces
from ttamer.artefact.container import pack, write
from ttamer.artefact.files import _describe
from ttamer.fitted.ladder import FittedLadder, FittedPolicy
from ttamer.fitted.mixture import Mixture
from ttamer.fitting.plans import fit


@examples(25)
@given(small_traces() | small_traces(passing=True))
def test_a_fitted_ladder_comes_back_and_decides_the_same(tmp_path_factory, trace):
    path = tmp_path_factory.mktemp("fit") / "policy.ttamer"
    ladder = fit(trace, belief="calibrated", states=3, tradeoffs=[0.1, 0.6, 0.9])
    tt.save(ladder, path, notes={"made": "in a test"})
    loaded = tt.load(path)
    assert isinstance(loaded, FittedLadder)
    assert loaded.fitted.spec == ladder.fitted.spec
    assert loaded.fitted.rows == len(trace)
    assert loaded.fitted.trace_digest == trace.digest
    for one, two in zip(ladder.play_all(trace), loaded.play_all(trace), strict=True):
        np.testing.assert_array_equal(one.answer, two.answer)
        np.testing.assert_array_equal(one.asked, two.asked)


def test_one_fitted_policy_comes_back(tmp_path):
    trace = chain_trace(200)
    policy = fit(trace, states=3).at(0.9)
    tt.save(policy, tmp_path / "one.ttamer")
    loaded = tt.load(tmp_path / "one.ttamer")
    assert isinstance(loaded, FittedPolicy)
    assert loaded.tradeoff == policy.tradeoff
    turn = loaded.session()
    turn.observe(confidence=0.9)
    assert turn.answer == "exit1"


def test_a_mixture_comes_back_whose_cheaper_policy_has_the_higher_tradeoff(tmp_path):
    trace = answering_trace(300)
    ladder = fit(trace, belief="calibrated", states=4)
    low, high = (ladder.at(tradeoff) for tradeoff in (0.5, 0.9))
    assert (low.play(trace).asked != high.play(trace).asked).any()
    mixture = Mixture(high, low, 0.3, seed=5)
    tt.save(mixture, tmp_path / "mixture.ttamer")
    loaded = tt.load(tmp_path / "mixture.ttamer")
    assert (loaded.cheap.tradeoff, loaded.expensive.tradeoff) == (high.tradeoff, low.tradeoff)
    np.testing.assert_array_equal(loaded.play(trace).asked, mixture.play(trace).asked)


def test_one_node_of_a_cascade_with_several_parents_comes_back(tmp_path):
    plain = answering_trace(300)
    *others, last = plain.spec.nodes
    parents = tuple(node.name for node in others)
    assert len(parents) > 1
    nodes = (*others, dataclasses.replace(last, after=parents))
    trace = plain.with_spec(dataclasses.replace(plain.spec, nodes=nodes))
    policy = fit(trace, tradeoffs=[0.2, 0.9]).alone(last.name)
    tt.save(policy, tmp_path / "alone.ttamer")
    loaded = tt.load(tmp_path / "alone.ttamer")
    assert loaded.spec.parents == trace.spec.parents
    np.testing.assert_array_equal(loaded.play(trace).asked, policy.play(trace).asked)


def test_inspect_reports_where_a_fit_comes_from(tmp_path):
    trace = answering_trace(200)
    tt.save(fit(trace, belief="calibrated", states=4), tmp_path / "fit.ttamer")
    facts = tt.inspect(tmp_path / "fit.ttamer")["fit"]
    assert facts["rows"] == 200
    assert facts["trace"] == trace.digest
    assert facts["belief"] == "calibrated"


def forged(change, trace=None):
    """A fitted file with one thing changed and its checksum right."""
    trace = answering_trace(100) if trace is None else trace
    header, arrays = _describe(fit(trace, belief="calibrated", states=3, tradeoffs=[0.5]), {})
    change(header["fit"], arrays)
    return pack(header, arrays)


FORGERIES = {
    "a field too few": lambda f, a: f.pop("rows"),
    "a field too many": lambda f, a: f.update(more=1),
    "another name": lambda f, a: f["names"].__setitem__(0, "else"),
    "a name too few": lambda f, a: f["names"].pop(),
    "a name that is none": lambda f, a: f["names"].__setitem__(0, 3),
    "no names": lambda f, a: f.update(names={}),
    "a parent of nothing": lambda f, a: f["after"].__setitem__(0, "nobody"),
    "a column twice": lambda f, a: f["columns"].__setitem__(0, 1),
    "a column beyond": lambda f, a: f["columns"].__setitem__(0, 9),
    "columns turned": lambda f, a: f["columns"].reverse(),
    "an unknown order": lambda f, a: f.update(order="sideways"),
    "a plan that is none": lambda f, a: f.update(plan=[]),
    "a plan of numbers": lambda f, a: f["plan"].update(states=3),
    "no rows": lambda f, a: f.update(rows=0),
    "an edge too few": lambda f, a: f["edges"].__setitem__(0, 1),
    "edges of another node": lambda f, a: f.update(edges=[1, 3, 2]),
    "edges that fall": lambda f, a: a["fit_edges"].__setitem__(1, -1e9),
    "an infinite edge": lambda f, a: a["fit_edges"].__setitem__(1, np.inf),
    "a negative cost": lambda f, a: a["fit_costs"].__setitem__(0, -1),
    "a cost too few": lambda f, a: a.update(fit_costs=a["fit_costs"][:-1].copy()),
}


@pytest.mark.parametrize("change", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_fit_is_refused(tmp_path, change):
    path = tmp_path / "forged.ttamer"
    write(path, forged(change))
    with pytest.raises(tt.ArtefactDamaged, match="forged"):
        tt.load(path)
    with pytest.raises(tt.ArtefactDamaged):
        tt.inspect(path)


def test_a_fit_of_exits_that_may_be_passed_keeps_what_passing_costs(tmp_path):
    path = tmp_path / "sound.ttamer"
    write(path, forged(lambda _fit, _arrays: None, passing_trace(100)))
    assert tt.load(path).fitted.spec.passing.tolist() == [1.5, 0.25, 0.0]


def test_a_fit_without_passing_has_no_array_of_it():
    _, arrays = _describe(fit(chain_trace(100), belief="calibrated", states=3), {})
    assert "fit_passing" not in arrays


def test_the_unchanged_file_of_these_forgeries_loads(tmp_path):
    path = tmp_path / "sound.ttamer"
    write(path, forged(lambda _fit, _arrays: None))
    assert isinstance(tt.load(path), FittedLadder)
