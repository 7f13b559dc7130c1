"""Planted in fold models, in what forgotten rows are held to, and in published rivals."""

from tests.mutants.planted import Planted

PLANTED = (
    Planted(
        "divisions taken for one",
        "precomputed/fold_chance.py",
        "-math.expm1(repeats * math.log1p(-once))",
        "-math.expm1(math.log1p(-once))",
        "precomputed/test_grouped.py::test_the_chance_is_that_of_many_divisions",
    ),
    Planted(
        "the effect of a row added instead of taken away",
        "methods/out_of_fold/in_minus_out.py",
        "return Corrected((outside + kept * beyond).to(own), kept, noise)",
        "return Corrected((2 * inside - outside + kept * beyond).to(own), kept, noise)",
        "methods/out_of_fold/test_in_minus_out.py::test_the_correction_in_closed_form",
    ),
    Planted(
        "squares of logits that are not centred",
        "core/targets.py",
        "return (y - outputs).var(dim=1, correction=0) / 2",
        "return (y - outputs).square().mean(dim=1) / 2",
        "methods/out_of_fold/test_steady.py::test_squares_are_the_limit_of_a_high_temperature",
    ),
    Planted(
        "the sum of a batch's curvature for its mean",
        "methods/out_of_fold/steady.py",
        "v = G.multiply(v / v.norm()) / len(data)",
        "v = G.multiply(v / v.norm())",
        "methods/out_of_fold/test_steady.py::test_the_curvature_in_closed_form",
    ),
    Planted(
        "retained rows not asked",
        "methods/out_of_fold/step_scale.py",
        "return off, math.isfinite(off) and errors <= most_errors",
        "return off, math.isfinite(off)",
        "methods/out_of_fold/test_step_scale.py::test_retained_rows_have_their_say_and_their_limit",
    ),
)
