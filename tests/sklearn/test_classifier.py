"""A cascade of classifiers is a classifier of scikit-learn."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import KFold
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import check_estimator

import ttamer as tt
from ttamer.errors import ArgumentError
from ttamer.sklearn import CascadeClassifier, base

MODELS = [("linear", LinearDiscriminantAnalysis()), ("near", KNeighborsClassifier())]
COSTS = {"linear": 1.0, "near": 20.0}


@pytest.fixture
def quick(monkeypatch):
    """A belief that is fitted in half of the time."""
    monkeypatch.setattr(base, "fit", partial(tt.fit, belief="threshold"))


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    return x[:1200], y[:1200], x[1200:], y[1200:]


@pytest.fixture(scope="module")
def fitted(digits):
    return CascadeClassifier(MODELS, costs=COSTS, cv=3).fit(*digits[:2])


@pytest.mark.usefixtures("quick")
@pytest.mark.filterwarnings("ignore:Skipping check check_array_api_input")
@pytest.mark.filterwarnings("ignore:.*of the rows repeat others")
@pytest.mark.filterwarnings("ignore:class .* is never predicted")
def test_it_passes_the_checks_of_scikit_learn():
    models = [("bayes", GaussianNB()), ("tree", DecisionTreeClassifier(random_state=0))]
    check_estimator(CascadeClassifier(models, costs={"bayes": 1.0, "tree": 5.0}, cv=2))


def test_it_is_as_accurate_as_its_best_model_and_costs_less(digits, fitted):
    *_, x, y = digits
    best = max(model.score(x, y) for _, model in fitted.models_)
    done = fitted.run_batch(x)
    assert fitted.score(x, y) >= best - 0.02
    assert done.cost.mean() < 10.0
    assert (np.array(done.answers) == fitted.predict(x)).all()
    assert set(done.by) <= {"linear", "near"}
    assert done.cost == pytest.approx(done.asked @ [1.0, 20.0])


def test_probabilities_are_those_of_the_model_that_answers(digits, fitted):
    x = digits[2][:50]
    by, models = fitted.run_batch(x).by, dict(fitted.models_)
    shown = fitted.predict_proba(x)
    for row, name in enumerate(by):
        assert shown[row] == pytest.approx(models[name].predict_proba(x[row : row + 1])[0])


@pytest.mark.usefixtures("quick")
def test_a_model_is_judged_on_rows_it_did_not_learn_from(digits):
    x, y, *_ = digits
    deep = DecisionTreeClassifier(random_state=0)  # it knows the rows it learnt from by heart
    assert deep.fit(x, y).score(x, y) == 1.0
    cascade = CascadeClassifier([("deep", deep)], costs={"deep": 1.0}, cv=3)
    assert cascade.fit(x, y).trace_.loss.mean() > 0.1


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", ["shuffled", "generator"])
def test_all_models_answer_the_same_rows_in_the_same_order(digits, kind):
    """A splitter that shuffles gives other folds each time; a generator gives them once."""
    x, y = digits[0][:300], digits[1][:300]
    folds = KFold(3, shuffle=True)
    cv = folds if kind == "shuffled" else folds.split(x)
    cascade = CascadeClassifier(MODELS, costs=COSTS, cv=cv).fit(x, y)
    assert cascade.trace_.loss.mean(axis=0).max() < 0.3


@pytest.mark.usefixtures("quick")
def test_a_rare_class_does_not_change_the_number_of_folds(digits):
    x, y, *_ = digits
    rows = []

    class Counts(GaussianNB):
        def fit(self, x, y):
            rows.append(len(x))
            return super().fit(x, y)

    rare = np.where(np.arange(200) == 7, 99, y[:200] % 3)
    cascade = CascadeClassifier([("bayes", Counts())], costs={"bayes": 1.0})
    cascade.fit(x[:200], rare)
    assert rows == [160] * 5 + [200]


@pytest.mark.usefixtures("quick")
def test_models_fitted_before_are_used_as_they_are(digits):
    x, y, *_ = digits
    models = [(name, clone(model).fit(x[:600], y[:600])) for name, model in MODELS]
    frozen = [(name, FrozenEstimator(model)) for name, model in models]
    cascade = CascadeClassifier(frozen, costs=COSTS)
    cascade.fit(x[600:][y[600:] != 9], y[600:][y[600:] != 9])
    assert 9 in cascade.classes_
    cascade.fit(x[600:], y[600:])
    assert [model for _, model in cascade.models_] == [model for _, model in frozen]
    assert len(cascade.trace_) == 600
    assert cascade.trace_.loss[:, 1].mean() == pytest.approx(
        1 - models[1][1].score(x[600:], y[600:])
    )


# Time


def slow(monkeypatch, **lines):
    """Replace the clock: microseconds per call and per row, by name; otherwise of the cascade."""

    def clock(works, samples):
        for work in works.values():
            work(*samples[1][0])
        of = {name: lines.get(name.partition(" ")[0]) for name in works}
        return {name: {n: call + row * n for n in samples} for name, (call, row) in of.items()}

    monkeypatch.setattr(base, "clock", clock)


def test_calls_and_rows_cost_apart_and_are_shared_by_a_stated_batch(digits, monkeypatch, tmp_path):
    x, y, held, _ = digits
    slow(monkeypatch, linear=(100.0, 2.0), near=(400.0, 30.0), cascade=(10.0, 5.0))
    cascade = CascadeClassifier(MODELS, cv=2, batch=10).fit(x, y)  # without a word on prices
    assert cascade.timings_["linear"] == pytest.approx((100.0, 2.0))
    assert cascade.costs_ == pytest.approx({"linear": 12.0, "near": 70.0})
    # A call for one row costs as much as one for ten, and one of ten rows may ask for it.
    both = cascade.policy_.play(cascade.trace_).asked[:, 1].mean()
    assert 0.01 < both < 0.5
    calls = 1 - (1 - both) ** 10
    assert cascade.policy_.cost == pytest.approx((2 + 10) + (30 * both + 40 * calls))
    done = cascade.run_batch(held[:200])
    first, second = done.asked.sum(axis=0)
    assert first == 200 > second > 0
    assert done.cost.sum() == pytest.approx((100 + 2 * first) + (400 + 30 * second))
    spec = cascade.trace_.spec
    assert [node.cost for node in spec.nodes] == pytest.approx([2.0, 30.0])
    assert [node.cost_per_call for node in spec.nodes] == pytest.approx([100.0, 400.0])
    spec.to_file(tmp_path / "cascade.toml")
    assert tt.CascadeSpec.from_file(tmp_path / "cascade.toml") == spec
    assert "cost_per_call" in (tmp_path / "cascade.toml").read_text()


@pytest.mark.parametrize(
    ("cascade", "sizes"),  # the cascade is slower than the best model for batches up to a size
    [((10.0, 5.0), []), ((500.0, 5.0), [1, 8]), ((1000.0, 50.0), [1, 8, 64, 1000])],
)
def test_the_best_model_answers_batches_on_which_the_cascade_is_no_faster(
    digits, monkeypatch, cascade, sizes
):
    x, y, held, _ = digits
    slow(monkeypatch, linear=(1.0, 1.0), near=(300.0, 30.0), cascade=cascade)
    fitted = CascadeClassifier(MODELS, cv=2, batch=64).fit(x, y)
    assert fitted.best_model_ == "near"
    rows = np.concatenate([held, held])
    alone = [size for size in (1, 8, 64, 1000) if set(fitted.run_batch(rows[:size]).by) == {"near"}]
    assert [size for size in alone if fitted._is_as_fast_alone(size)] == sizes
    assert set(fitted.timings_) == {"linear", "near", "cascade", "near alone"}
    fitted.policy_ = fitted.ladder_.at(0.5)  # what was timed is another policy
    assert not fitted._is_as_fast_alone(1)


def test_the_cascade_is_timed_as_it_runs_on_rows_that_models_did_not_learn_from(
    digits, monkeypatch
):
    """Models are surer of the rows they learnt from, and the next one would be asked less often."""
    asked = []

    def clock(works, samples):
        if "cascade" in works:
            asked.extend(works["cascade"](*batch).asked[:, 1].mean() for batch in samples[256])
        return {name: {n: n * (1.0 + 50.0 * ("near" in name)) for n in samples} for name in works}

    monkeypatch.setattr(base, "clock", clock)
    x, y, *_ = digits
    models = [("few", RandomForestClassifier(5, random_state=0)), MODELS[1]]
    cascade = CascadeClassifier(models, cv=3, budget=30.0).fit(x, y)
    share = cascade.policy_.play(cascade.trace_).asked[:, 1].mean()
    assert np.mean(asked) == pytest.approx(share, abs=0.05)
    assert cascade.run_batch(x).asked[:, 1].mean() < 0.7 * share


# Certificates


class Forgetful(KNeighborsClassifier):
    """A model that is good when fitted to some rows and bad when fitted to all of them."""

    def fit(self, x, y):
        return super().fit(x, y if len(x) < 900 else np.roll(y, len(y) // 2))


def test_certificates_are_of_the_models_that_are_deployed(digits, monkeypatch):
    x, y, held, labels = digits
    models = [("linear", LinearDiscriminantAnalysis()), ("near", Forgetful())]
    cascade = CascadeClassifier(models, costs=COSTS, cv=2)
    for belief in ("answers", "threshold"):
        monkeypatch.setattr(base, "fit", partial(tt.fit, belief=belief))
        cascade.fit(x, y)
        with pytest.raises(ArgumentError, match="a promise needs rows the ladder was not fitted"):
            cascade.ladder_.for_error(0.1)
        cascade.fit(x, y, certify_on=(held, labels))
        ladder = cascade.ladder_
        assert len(ladder.held) == len(held)
        for at_most in (0.03, 0.06, 0.1, 0.3):
            promised = ladder.for_error(at_most)
            if promised.promise.certified:
                cascade.policy_ = promised.expensive
                assert 1 - cascade.score(held, labels) <= at_most
    cascade.fit(x, y, certify_on=(held, labels, np.arange(len(held)) // 3))
    assert len(np.unique(cascade.ladder_.held.group)) == -(-len(held) // 3)
    for held in (x, (x,), 5):
        with pytest.raises(
            ArgumentError, match=r"certify_on is a .*must be \(X, y\) or \(X, y, gr"
        ):
            cascade.fit(x, y, certify_on=held)


@pytest.mark.usefixtures("quick")
def test_certificates_hold_on_fresh_rows():
    """Of 16 cascades, few exceed an error that was certified with 80% confidence."""
    broken = certified = 0
    for seed in range(16):
        generator = np.random.default_rng(seed)
        y = generator.integers(0, 2, 4000)
        x = generator.standard_normal((4000, 6)) + 0.5 * y[:, None]
        parts = [(x[cut], y[cut]) for cut in (slice(0, 300), slice(300, 900), slice(900, 4000))]
        models = [("tree", DecisionTreeClassifier(max_depth=3)), ("bayes", GaussianNB())]
        cascade = CascadeClassifier(models, costs={"tree": 1.0, "bayes": 9.0}, cv=3).fit(
            *parts[0], certify_on=parts[1]
        )
        promised = cascade.ladder_.for_error(0.32, confidence=0.8)
        if promised.promise.certified:
            certified += 1
            cascade.policy_ = promised.expensive
            broken += 1 - cascade.score(*parts[2]) > 0.32
    assert certified > 5
    assert broken <= 7  # more has a chance below 1 in 1000


# Rows and classes that count more


def test_groups_are_not_split(digits):
    x, y = digits[0][:300], digits[1][:300]
    rows, labels, groups = np.tile(x, (4, 1)), np.tile(y, 4), np.tile(np.arange(300), 4)
    models = [("near", KNeighborsClassifier(1))]
    cascade = CascadeClassifier(models, costs={"near": 1.0}, cv=3)
    fractions = rows + 0.25  # whole numbers may repeat by chance
    with pytest.warns(UserWarning, match="75% of the rows repeat others"):
        cascade.fit(fractions, labels)
    assert cascade.trace_.loss.mean() == 0  # judged on rows it learnt
    cascade.fit(fractions, labels, groups=groups)
    assert cascade.trace_.loss.mean() > 0.005
    assert cascade.trace_.group is not None


def test_weights_reach_the_models_and_the_policy(digits):
    x, y = digits[0][:400], digits[1][:400] % 2
    weight = np.where(y == 1, 5.0, 1.0)
    models = [("bayes", GaussianNB()), ("near", KNeighborsClassifier())]
    cascade = CascadeClassifier(models, costs={"bayes": 1.0, "near": 9.0}, cv=3)
    plain = dict(clone(cascade).fit(x, y).models_)["bayes"]
    cascade.fit(x, y, sample_weight=weight)
    assert cascade.models_[0][1].class_prior_[1] > plain.class_prior_[1]
    assert cascade.ladder_.record.weighting == "chance"
    dropped = cascade.fit(x, y, sample_weight=np.where(np.arange(400) < 300, 1.0, 0.0))
    assert len(dropped.trace_) == 300
    with pytest.raises(ValueError, match="one number from 0 on for each row"):
        cascade.fit(x, y, sample_weight=-weight)


@pytest.fixture(scope="module")
def rare():
    """Rows of which 3% are positive, and hard to find."""
    generator = np.random.default_rng(0)
    y = np.where(generator.random(4000) < 0.03, "yes", "no")
    x = generator.standard_normal((4000, 5)) + 1.2 * (y == "yes")[:, None]
    return x, y


RARE = {
    "models": [("stump", DecisionTreeClassifier(max_depth=1)), ("near", KNeighborsClassifier(1))],
    "costs": {"stump": 1.0, "near": 9.0},
}


def test_a_rare_class_that_is_never_found_is_said_and_can_be_asked_for(rare):
    x, y = rare
    with pytest.warns(UserWarning, match=r"class 'yes', 3.2%.*never predicted.*class_weight"):
        CascadeClassifier(**RARE, cv=3).fit(x, y)
    recall = {}
    for options in (
        {"class_weight": "balanced"},
        {"mistakes": {"yes": {"*": 30.0}}},
        {"scoring": "balanced_accuracy"},
    ):
        cascade = CascadeClassifier(**RARE, cv=3, **options).fit(x[:2000], y[:2000])
        recall[next(iter(options))] = (cascade.predict(x[2000:]) == "yes")[y[2000:] == "yes"].mean()
    assert min(recall.values()) > 0.3, recall
    with pytest.raises(ArgumentError, match="mistakes and class_weight are both given"):
        CascadeClassifier(**RARE, class_weight="balanced", mistakes={"yes": {"*": 9.0}}).fit(x, y)


def test_ladders_have_the_names_of_classes(digits, tmp_path):
    x, y, held, _ = digits
    names = np.array(["zero", *"123456789"])
    cascade = CascadeClassifier(MODELS, costs=COSTS, cv=2).fit(x, names[y])
    assert set(cascade.trace_.classes) == set(names)
    tt.save(cascade.policy_, tmp_path / "policy.ttamer")
    loaded = tt.load(tmp_path / "policy.ttamer")
    nodes = {name: model.predict_proba for name, model in cascade.models_}
    by = cascade.run_batch(held).by
    for row, name in zip(held, by, strict=True):
        turn = loaded.session()
        while turn.next is not None:
            share = nodes[turn.next](row[None])[0]
            turn.observe(confidence=share.max(), prediction=cascade.classes_[share.argmax()])
        assert turn.answer == name


def test_an_operating_point_can_be_chosen(digits, fitted):
    x, y, held, _ = digits
    poor = clone(fitted).set_params(budget=5.0).fit(x, y)
    assert poor.policy_.cost <= 5.0
    rich = clone(fitted).set_params(mistake_cost=1e5)
    assert rich.fit(x, y).run_batch(held).cost.mean() > poor.run_batch(held).cost.mean()


def test_texts_and_frames_will_do(digits):
    pandas = pytest.importorskip("pandas")
    x, y, *_ = digits
    cascade = CascadeClassifier(MODELS, costs=COSTS, cv=2)
    names = np.array(["zero", *"123456789"])
    frame = pandas.DataFrame(x, columns=[f"p{i}" for i in range(64)])
    cascade.fit(frame, names[y])
    assert cascade.score(frame, names[y]) > 0.9
    with pytest.raises(ValueError, match="feature names"):
        cascade.predict(frame.rename(columns={"p0": "other"}))
    with pytest.raises(ValueError, match="minimum of 1 is required"):
        cascade.predict(frame[:0])
    texts = [f"{'good' if k % 2 else 'bad'} {k}" for k in range(100)]
    words = [
        (n, make_pipeline(HashingVectorizer(n_features=64), LogisticRegression())) for n in "ab"
    ]
    cascade = CascadeClassifier(words, costs={"a": 1.0, "b": 2.0}, cv=2)
    assert cascade.fit(texts, np.arange(100) % 2).score(texts, np.arange(100) % 2) > 0.9


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_models_may_select_the_columns_of_a_frame_by_name(library, digits):
    frames = pytest.importorskip(library)
    x, y, _, _ = digits
    frame = frames.DataFrame({"edge": x[:, 2], "word": [f"w{c % 3}" for c in y], "mid": x[:, 36]})

    def model(tree):
        return make_pipeline(
            make_column_transformer((OneHotEncoder(), ["word"]), ("passthrough", ["mid"])), tree
        )

    models = [(f"{n}", model(DecisionTreeClassifier(max_depth=n))) for n in (1, 6)]
    cascade = CascadeClassifier(models, costs={"1": 1.0, "6": 9.0}, cv=2)
    assert cascade.fit(frame, y % 3).score(frame, y % 3) == 1.0
    assert cascade.predict(frame[:5]).shape == (5,)


def test_parameters_of_the_models_are_reached_by_name():
    models = [("line", make_pipeline(StandardScaler(), LogisticRegression())), *MODELS[1:]]
    cascade = CascadeClassifier(models).set_params(line__logisticregression__C=3.0)
    assert cascade.get_params()["line__logisticregression__C"] == 3.0
    assert clone(cascade).get_params()["line__logisticregression__C"] == 3.0
    assert isinstance(dict(cascade.set_params(near=GaussianNB()).models)["near"], GaussianNB)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": KNeighborsClassifier()}, "list of .name, model."),
        ({"models": []}, "list of .name, model."),
        ({"models": [("cascade", GaussianNB())]}, "the name 'cascade' cannot be used"),
        ({"models": [("batch", GaussianNB())]}, "the name 'batch' cannot be used"),
        ({"models": [("a__b", GaussianNB())]}, "the name 'a__b' cannot be used"),
        ({"models": [MODELS[0]] * 2}, "the name 'linear' cannot be used"),
        ({"costs": "money"}, 'it must be "time" or a mapping'),
        ({"costs": [1, 2]}, r'costs is \[1, 2\]; it must be "time" or a mapping'),
        ({"costs": {"linear": 1.0}}, "a cost for each of the models: 'linear', 'near'"),
        ({"budget": 1.0, "mistake_cost": 1.0}, "give one of them"),
        ({"budget": 1.0, "scoring": "f1_macro"}, "scoring chooses the policy, and so does"),
        ({"cv": 1}, "cv is 1; it must be a whole number from 2 on"),
        ({"mistakes": {"7": {"*": 2.0}}}, "mistakes has '7'; .* classes of y: 0,"),
        ({"mistakes": {7: 2.0}}, r"mistakes has '.7: 2.0.'; it must be the cost of each"),
        ({"mistakes": {7: {12: 2.0}}}, "mistakes has 12; .* classes of y"),
    ],
)
def test_parameters_that_cannot_be_used_are_refused(digits, change, message):
    arguments = {"models": MODELS, "costs": COSTS} | change
    with pytest.raises(tt.ArgumentError, match=message):
        CascadeClassifier(**arguments).fit(*digits[:2])


def test_a_model_without_a_confidence_is_refused(digits):
    class Silent(KNeighborsClassifier):
        predict_proba = property()

    cascade = CascadeClassifier([("silent", Silent())], costs={"silent": 1.0}, cv=2)
    with pytest.raises(tt.ArgumentError, match="'silent' has no predict_proba; a cascade needs"):
        cascade.fit(*digits[:2])


def test_a_regressor_is_refused(digits):
    rows, labels = digits[0][:60], digits[1][:60]
    with pytest.raises(
        tt.ArgumentError, match=r"model .line. is no classifier .* CascadeRegressor"
    ):
        CascadeClassifier([("line", LinearRegression())], costs={"line": 1.0}).fit(rows, labels)


def test_an_exception_of_a_model_is_raised_as_it_is(digits):
    class Breaks(KNeighborsClassifier):
        def predict_proba(self, X):  # noqa: N803
            if len(X) == 7:
                raise RuntimeError("no memory")
            return super().predict_proba(X)

    x, y, *_ = digits
    cascade = CascadeClassifier([("breaks", Breaks())], costs={"breaks": 1.0}, cv=2)
    cascade.fit(x, y)
    with pytest.raises(RuntimeError, match="no memory"):
        cascade.predict(x[:7])
