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
    Planted(
        "toward what the network is sure of",
        "methods/amun.py",
        "away = away + 0.1 * radius",
        "away = away - 0.1 * radius",
        "methods/test_rivals_second.py::test_amun_goes_straight_to_the_boundary_of_a_linear_network",
    ),
    Planted(
        "sharpened instead of softened",
        "methods/lotus.py",
        "/ math.exp(self.alpha * gap)",
        "* math.exp(self.alpha * gap)",
        "methods/test_rivals_second.py::test_lotus_tempers_by_how_much_better_forgotten_rows_are_answered",
    ),
    Planted(
        "the largest gradients reset",
        "methods/msg.py",
        "size[place].argsort(stable=True)[:count]",
        "size[place].argsort(stable=True, descending=True)[:count]",
        "methods/test_rivals_second.py::test_msg_resets_the_smallest_and_masks_the_others",
    ),
    Planted(
        "kernels left as they are",
        "methods/ct.py",
        "piece.reshape(shape).transpose(2, 3).flatten()",
        "piece.reshape(shape).flatten()",
        "methods/test_rivals_second.py::test_ct_is_fine_tuning_from_transposed_kernels",
    ),
    Planted(
        "truncated retraining on all rows",
        "methods/truncated_retrain.py",
        "made = train(begun, split.retain, seed",
        "made = train(begun, split.whole, seed",
        "methods/test_rivals_second.py::test_truncated_retraining_is_the_recipe_with_fewer_epochs",
    ),
    Planted(
        "few forgotten rows outvoted by many others",
        "readouts/linear_probe.py",
        "return w, (means[0] + means[1]) / 2",
        "return w, torch.cat([members, others]).mean(dim=0)",
        "readouts/test_linear_probe.py::test_the_direction_is_fishers_discriminant",
    ),
    Planted(
        "what enters the first layer",
        "readouts/linear_probe.py",
        "found.append(_pooled(entered[-1]))",
        "found.append(_pooled(entered[0]))",
        "readouts/test_linear_probe.py::test_hidden_is_what_enters_the_last_layer",
    ),
)
