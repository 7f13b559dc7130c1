"""Solvers as values: old settings mean the same, text is flat, and what a solver does not have is refused."""

import pytest

import spotlessnet as sn
from spotlessnet.core.errors import SettingError
from spotlessnet.core.registry import assembled
from spotlessnet.operators.solvers import CG, Auto, Dual, LowRank, Solver
from spotlessnet.requests.methods import described, named, usual


@pytest.mark.parametrize(
    ("old", "solver"),
    [
        ({"solution": "dual"}, Dual()),
        ({"solution": "primal", "max_iterations": 7}, CG(max_iterations=7)),
        ({"solution": "low rank", "rank": 20, "tolerance": 1e-3}, LowRank(1e-3, rank=20)),
        ({"tolerance": 1e-3, "precondition": 5}, Auto(1e-3, precondition=5)),
        ({"solution": "dual", "rank": 200}, Dual()),  # the usual number, as receipts of version 0.1 have it
    ],
)
def test_old_keywords_mean_a_solver_and_warn(old, solver):
    with pytest.warns(DeprecationWarning, match=r"`NTK\(.*=\.\.\.\)` is now called `solver="):
        method = sn.NTK(**old)
    assert method == sn.NTK(solver=solver)


@pytest.mark.parametrize(
    ("old", "kind"),
    [({"rank": 5}, "auto"), ({"solution": "dual", "rank": 20}, "dual"), ({"solution": "primal", "rank": 5}, "cg")],
)
def test_an_old_keyword_that_the_solver_does_not_have_is_refused(old, kind):
    """The fault before: `NTK(rank=5)` dropped the 5 without a word."""
    with pytest.raises(
        SettingError, match=rf"`rank` must go with a solver that has it \(low-rank\), but it is '{kind}'"
    ):
        sn.NTK(**old)


def test_old_attributes_are_read_from_the_solver():
    method = sn.NTK(solver=CG(1e-3, 7))
    with pytest.warns(DeprecationWarning, match=r"`NTK.max_iterations` is now called `solver.max_iterations`"):
        assert method.max_iterations == 7
    with pytest.warns(DeprecationWarning, match=r"`Newton\(tolerance=\.\.\.\)` is now called `solver=CG\("):
        assert sn.Newton(tolerance=1e-2).solver == CG(1e-2)  # type: ignore[call-arg]  # an old keyword


def test_text_is_flat():
    assert named("ntk", {"solver": "low-rank", "rank": "20"}) == sn.NTK(solver=LowRank(rank=20))
    assert named("ntk", {"tolerance": "1e-3"}) == sn.NTK(solver=Auto(1e-3))
    assert named("newton", {"max-iterations": 9}) == sn.Newton(solver=CG(1e-4, 9))
    with pytest.warns(DeprecationWarning, match="the setting 'solution' of NTK is now called 'solver'"):
        assert named("ntk", {"solution": "primal"}) == sn.NTK(solver=CG())
    with pytest.raises(SettingError, match=r"`ntk.solver` must be 'dual' or .*, but got 'best'"):
        named("ntk", {"solver": "best"})


@pytest.mark.parametrize("solver", [Auto(1e-3), Dual(), CG(max_iterations=3), LowRank(rank=5)])
def test_what_a_receipt_says_makes_the_same_method_again(solver):
    method = sn.NTK(solver=solver, damping=0.1)
    name, settings = described(method)
    assert named(name, settings["ntk"]) == method
    assert set(settings["ntk"]) <= set(usual("ntk"))


def test_settings_of_receipts_of_version_0_1_still_make_a_method():
    old = {"solution": "auto", "rank": 200, "precondition": 0, "tolerance": 1e-6, "max_iterations": 500}
    with pytest.warns(DeprecationWarning, match="is now called 'solver'"):
        assert named("ntk", old) == sn.NTK()


def test_a_setting_that_the_solver_does_not_have_is_refused():
    with pytest.raises(SettingError, match=r"`rank` must go with a solver that has it \(low-rank\), but it is 'auto'"):
        named("ntk", {"rank": 20})
    with pytest.raises(SettingError, match="Leave `precondition` out"):
        sn.Newton(solver=CG(precondition=3))


def test_bad_settings_are_named():
    with pytest.raises(SettingError, match=r"`LowRank.rank` must be positive, but got 0"):
        LowRank(rank=0)
    with pytest.raises(SettingError, match=r"`CG.max_iterations` must be positive"):
        CG(max_iterations=0)
    with pytest.raises(SettingError, match=r"`Dual.tolerance` must be positive"):
        Dual(0.0)


def test_kinds_and_defaults():
    assert set(Solver.kinds()) == {"auto", "dual", "cg", "low-rank"}
    assert set(CG.kinds()) == {"cg"}
    assert assembled(sn.NTK, {"damping": 0.1}) == {"damping": 0.1}
    assert Dual(1e-9).no_finer_than(1e-6) == Dual(1e-6)
