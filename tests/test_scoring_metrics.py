"""The formulas: by hand, by their properties, and against scikit-learn and scipy to the last digit."""

from __future__ import annotations

import importlib.util
import json
import runpy

import numpy as np
import pytest
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from reasonknee.scoring import bootstrap
from reasonknee.scoring import metrics as me
from reasonknee.scoring.intervals import t_quantile, wilson

# true grade 0: two right, one called 1; true grade 1: one right, one not answered
SMALL = np.array([[2, 1, 0], [0, 1, 1]], float)


def confusion(true: np.ndarray, given_: np.ndarray, k: int) -> np.ndarray:
    """The last column holds -1: no answer."""
    table = np.zeros((k, k + 1))
    np.add.at(table, (true, np.where(given_ < 0, k, given_)), 1)
    return table


def test_by_hand() -> None:
    assert me.accuracy(SMALL, strict=True) == 3 / 5
    assert me.accuracy(SMALL, strict=False) == 3 / 4
    assert me.recall(SMALL, 1, strict=True) == 1 / 2
    assert me.recall(SMALL, 1, strict=False) == 1
    assert me.recall(SMALL, 0, strict=True) == 2 / 3
    assert me.balanced_accuracy(SMALL, strict=True) == pytest.approx(7 / 12)
    # answered: chance agreement is (3*2 + 1*2) / 16 = 1/2, observed is 3/4
    assert me.kappa(SMALL, quadratic=False) == pytest.approx(1 / 2)
    # grade 0: 2*2 / (3+2), grade 1: 2*1 / (2+2) with the unanswered one as missed
    assert me.macro_f1(SMALL, strict=True) == pytest.approx((4 / 5 + 2 / 4) / 2)
    assert me.mean_absolute_error(SMALL) == 1 / 4
    far = np.array([[0, 0, 0, 1, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 1, 0, 0]], float)
    assert me.within_one(far, strict=True) == 2 / 4
    assert me.within_one(far, strict=False) == 2 / 3


def test_undefined_stays_undefined() -> None:
    nothing = np.zeros((3, 4))
    unanswered = np.array([[0, 0, 5], [0, 0, 2]], float)
    one_grade = np.array([[5, 0, 0], [0, 0, 0]], float)
    for value in (
        me.accuracy(nothing, True),
        me.macro_f1(nothing, True),
        me.accuracy(unanswered, False),
        me.kappa(unanswered, True),
    ):
        assert np.isnan(value)
    assert me.accuracy(unanswered, True) == 0
    assert np.isnan(me.kappa(one_grade, quadratic=True))
    assert np.isnan(me.balanced_accuracy(one_grade, True))
    assert np.isnan(me.recall(one_grade, 1, True))
    assert np.isnan(me.correlation(np.ones(4), np.arange(4.0), np.ones((1, 4)))[0])


@st.composite
def graded(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    k = draw(st.integers(2, 9))
    n = draw(st.integers(1, 60))
    seed = draw(st.integers(0, 10_000))
    rng = np.random.default_rng(seed)
    few = rng.integers(1, k + 1)  # often some grades do not occur
    return rng.integers(0, few, n), rng.integers(-1, few, n), k


@settings(max_examples=150)
@given(graded())
def test_equal_to_scikit_learn(case: tuple[np.ndarray, np.ndarray, int]) -> None:
    sk = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    true, given_, k = case
    table = confusion(true, given_, k)
    assert float(me.accuracy(table, True)) == sk.accuracy_score(true, given_)
    occur = sorted((set(true) | set(given_)) - {-1})
    assert float(me.macro_f1(table, True)) == sk.f1_score(
        true, given_, average="macro", labels=occur, zero_division=0
    )
    there = given_ >= 0
    true, given_ = true[there], given_[there]
    if not len(true):
        return
    assert float(me.accuracy(table, False)) == sk.accuracy_score(true, given_)
    assert float(me.mean_absolute_error(table)) == sk.mean_absolute_error(true, given_)
    assert float(me.macro_f1(table, False)) == sk.f1_score(
        true, given_, average="macro", labels=sorted(set(true) | set(given_)), zero_division=0
    )
    if len(set(true) | set(given_)) > 1:
        for quadratic, weights in ((True, "quadratic"), (False, None)):
            assert float(me.kappa(table, quadratic)) == sk.cohen_kappa_score(
                true, given_, labels=range(k), weights=weights
            )
    if k == 2 and len(set(true)) == 2:
        assert float(me.balanced_accuracy(table, False)) == sk.balanced_accuracy_score(true, given_)
        assert float(me.recall(table, 1, False)) == sk.recall_score(true, given_)


@settings(max_examples=50)
@given(st.integers(0, 10_000), st.integers(3, 40))
def test_correlations_equal_scipy_and_a_resample_by_weights_is_the_resample(seed: int, n: int) -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 6, n) / 5, rng.random(n)
    w = rng.multinomial(n, np.full(n, 1 / n)).astype(float)
    for weights, a, b in ((np.ones(n), x, y), (w, np.repeat(x, w.astype(int)), np.repeat(y, w.astype(int)))):
        if len(set(a)) < 2 or len(set(b)) < 2:
            continue
        assert me.correlation(x, y, weights[None])[0] == pytest.approx(stats.pearsonr(a, b)[0], abs=1e-12)
        ranks = me.ranks(x, weights[None]), me.ranks(y, weights[None])
        assert me.correlation(*ranks, weights[None])[0] == pytest.approx(stats.spearmanr(a, b)[0], abs=1e-12)


@settings(max_examples=50)
@given(graded(), graded())
def test_many_at_once_are_each_by_itself(
    one: tuple[np.ndarray, np.ndarray, int], other: tuple[np.ndarray, np.ndarray, int]
) -> None:
    k = max(one[2], other[2])
    tables = np.stack([confusion(one[0], one[1], k), confusion(other[0], other[1], k)])
    for formula in (
        lambda t: me.accuracy(t, True),
        lambda t: me.kappa(t, True),
        lambda t: me.macro_f1(t, False),
        lambda t: me.within_one(t, True),
        me.mean_absolute_error,
    ):
        np.testing.assert_array_equal(formula(tables), [formula(t) for t in tables])


def test_intervals_are_quantiles_of_what_is_defined() -> None:
    rng = np.random.default_rng(0)
    samples = rng.random((4, 200))
    samples[1, ::3] = np.nan
    samples[2] = np.nan
    low, high = bootstrap.intervals(samples)
    for i in (0, 1, 3):
        np.testing.assert_allclose([low[i], high[i]], np.nanquantile(samples[i], [0.025, 0.975]), rtol=1e-12)
    assert np.isnan(low[2])
    assert np.isnan(high[2])


def test_weights_draw_as_many_patients_as_there_are() -> None:
    weights = bootstrap.weights(7, 50, seed=3)
    assert (weights.sum(1) == 7).all()
    assert (weights == bootstrap.weights(7, 50, seed=3)).all()
    assert (weights != bootstrap.weights(7, 50, seed=4)).any()


def test_p_counts_both_sides_and_is_never_zero() -> None:
    permuted = np.array([[0.5, -0.5, 0.1, 0.0], [0.1, 0.1, 0.1, 0.1]])
    np.testing.assert_allclose(bootstrap.p_value(np.array([0.5, 0.9]), permuted), [3 / 5, 1 / 5])
    undefined = np.array([[np.nan, np.nan, 0.0]])
    assert bootstrap.p_value(np.array([0.5]), undefined)[0] == 3 / 4, "it is no proof that they are nearer"
    assert np.isnan(bootstrap.p_value(np.array([0.5]), np.empty((1, 0)))[0]), "nothing was tried"


def test_holm_by_hand() -> None:
    np.testing.assert_allclose(
        bootstrap.holm(np.array([0.04, 0.01, np.nan, 0.03])), [0.06, 0.03, np.nan, 0.06]
    )
    np.testing.assert_allclose(bootstrap.holm(np.array([0.9, 0.8])), [1, 1])


def test_t_is_students() -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    for degrees in (4, 5, 9, 19, 59, 199, 5000):
        assert t_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=0.005)


@settings(max_examples=80)
@given(st.floats(0, 1), st.floats(0, 0.4), st.integers(1, 500), st.integers(5, 100))
def test_an_interval_holds_its_value_and_stays_a_share(
    value: float, error: float, n: int, support: int
) -> None:
    low, high, none = wilson(value, error, n, support)
    assert 0 <= low <= value <= high <= 1
    assert high > low
    assert not none


def test_wilson_is_wilsons_where_judgments_are_independent() -> None:
    sm = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    p, n = 0.3, 50
    low, high, _ = wilson(p, np.sqrt(p * (1 - p) / n), n, n)
    exact = sm.binomtest(15, 50).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx((exact.low, exact.high))


def test_prevalence_adjusted_kappa_by_hand() -> None:
    # two grades, nine of ten right: PABAK is 2 * 0.9 - 1, whatever the margins
    for table in ([[9, 1, 0], [0, 0, 3]], [[5, 0, 0], [1, 4, 0]]):
        assert me.prevalence_adjusted_kappa(np.array(table, float), False) == pytest.approx(0.8)
    assert np.isnan(me.prevalence_adjusted_kappa(np.zeros((3, 4)), True))


def test_the_recorded_coverage_is_what_is_promised() -> None:
    """92 to 98 % at 20, 60 and 200 patients, wherever there is an interval; the simulation is benchmarks/coverage.py."""
    figures = json.loads((ROOT / "docs" / "bench" / "coverage.json").read_text())
    assert figures["trials"] >= 1000
    promised = [
        name
        for name in figures["patients"]["20"]
        if any(
            word in name
            for word in ("accuracy", "average", "kappa", "F1", "sensitivity", "specificity", "IoU")
        )
    ]
    assert len(promised) >= 15
    for patients in ("20", "60", "200"):
        for name in promised:
            entry = figures["patients"][patients][name]
            assert entry["covered"] is None or 0.92 <= entry["covered"] <= 0.98, (patients, name)
    assert figures["patients"]["200"]["sensitivity, rare"]["given"] > 0.9
    table = runpy.run_path(str(ROOT / "benchmarks" / "coverage.py"))["table"](figures)
    assert table in (ROOT / "docs" / "scores.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_intervals_cover() -> None:
    """The same simulation, shorter, with the code as it is now."""
    spec = importlib.util.spec_from_file_location("coverage_benchmark", ROOT / "benchmarks" / "coverage.py")
    assert spec is not None
    assert spec.loader is not None
    coverage = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(coverage)
    counted = coverage.trials(60, 200, 200, coverage.true_values(30_000), 3)
    for name, entry in counted.items():
        assert entry["covered"] is None or 0.88 <= entry["covered"] <= 1, name
    assert counted["sensitivity, rare"]["given"] < 0.5, "most have too few patients"
