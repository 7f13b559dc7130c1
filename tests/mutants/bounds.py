"""Planted in divergences and in what follows from them."""

from tests.mutants.planted import Planted

KL = "core/test_gaussian.py::test_kl_against_torch"
WHITE = "bounds/test_against_torch.py::test_white_box_is_torchs_divergence_from_scrubbed_to_retrained"
BLACK = "bounds/test_against_torch.py::test_black_box_is_torchs_divergence_of_the_linearised_answers"

PLANTED = (
    Planted(
        "divergence with the printed sign of the logarithm",
        "core/gaussian.py",
        "- own.logdet() + theirs.logdet()",
        "+ own.logdet() - theirs.logdet()",
        KL,
    ),
    Planted(
        "divergence without one half", "core/gaussian.py", "nats = 0.5 * (moved + spread", "nats = (moved + spread", KL
    ),
    Planted("white box reversed", "bounds/white_box.py", "scrubbed.kl(reference)", "reference.kl(scrubbed)", WHITE),
    Planted(
        "white box without one half",
        "bounds/white_box.py",
        "scrubbed.kl(reference)",
        "2 * scrubbed.kl(reference)",
        WHITE,
    ),
    Planted(
        "dense divergence with the printed sign of the logarithm",
        "bounds/dense_kl.py",
        "0.5 * (float(A.trace()) - logdet - r)",
        "0.5 * (float(A.trace()) + logdet - r)",
        BLACK,
    ),
    Planted(
        "black box with one Jacobian for both",
        "bounds/black_box.py",
        "output_covariance(reference, there, data)",
        "output_covariance(reference, here, data)",
        BLACK,
    ),
    Planted(
        "black box with one covariance for both",
        "bounds/black_box.py",
        "output_covariance(reference, there, data)",
        "output_covariance(scrubbed, there, data)",
        BLACK,
    ),
    Planted(
        "queries taken for independent",
        "bounds/black_box.py",
        "rows[i][j] = spread @ other.T",
        "rows[i][j] = (spread @ other.T).diag().diag()",
        BLACK,
    ),
    Planted(
        "one query with one Jacobian for both",
        "bounds/per_query.py",
        "covariances[1].pushforward(jacobian_of(there, one))",
        "covariances[1].pushforward(jacobian_of(here, one))",
        "bounds/test_against_torch.py::test_each_query_is_torchs_divergence_of_that_query",
    ),
    Planted(
        "the mean for its limit",
        "bounds/over_seeds.py",
        "else upper_limit(list(nats), level)",
        "else mean",
        "bounds/test_attacker.py::test_the_mean_over_seeds_has_a_one_sided_limit",
    ),
    Planted(
        "half the linear answer",
        "bounds/linearisation.py",
        "linear.append((J @ (w - gaussian.mean)).double())",
        "linear.append((0.5 * J @ (w - gaussian.mean)).double())",
        "bounds/test_linearisation_and_trade_off.py::test_a_linear_network_has_no_error_and_a_bent_one_has",
    ),
    Planted(
        "neighbours in one dimension",
        "bounds/from_samples.py",
        "return float(d * np.log(",
        "return float(np.log(",
        "bounds/test_from_samples.py::test_both_estimators_find_a_known_divergence",
    ),
    Planted(
        "fitted clouds in the other order",
        "bounds/from_samples.py",
        "torch.cov(a.T).reshape(d, d), torch.cov(b.T).reshape(d, d)).nats",
        "torch.cov(b.T).reshape(d, d), torch.cov(a.T).reshape(d, d)).nats",
        "bounds/test_from_samples.py::test_both_estimators_find_a_known_divergence",
    ),
    Planted(
        "Pinsker with the wrong constant",
        "bounds/attacker.py",
        "math.sqrt(nats / 2)",
        "math.sqrt(nats / 8)",
        "bounds/test_attacker.py::test_no_gaussian_attacker_beats_the_limit_and_ends_are_right",
    ),
    Planted(
        "a budget of half",
        "methods/within_budget/levels.py",
        "return 0.5 * float((gap.double() * covariance.double().solve(gap.double())).sum())",
        "return float((gap.double() * covariance.double().solve(gap.double())).sum())",
        "methods/test_within_budget.py::test_the_divergence_is_within_the_one_asked_for",
    ),
    Planted(
        "going down for a query",
        "bounds/adversarial_query.py",
        "* slope.sign()",
        "* -slope.sign()",
        "bounds/test_adversarial_query.py::test_the_query_found_is_the_worst_of_a_fine_grid",
    ),
    Planted(
        "a query's divergence without its logarithm",
        "bounds/adversarial_query.py",
        "- len(m)) + logs",
        "- len(m))",
        "bounds/test_adversarial_query.py::test_on_a_bent_network_it_is_the_bound_of_that_query_and_never_less_than_before",
    ),
)
