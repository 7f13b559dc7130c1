"""Under the null, with real trainings: p-values are uniform, limits hold the truth, bets seldom win. Minutes.

Figures of more audits: `results/calibration.jsonl`.
"""

import pytest
from benchmarks.calibration import COLUMNS, FIRST, audit, summary, table
from scipy import stats


@pytest.mark.slow
def test_p_values_are_uniform_limits_cover_and_bets_seldom_win_where_candidates_were_retrained():
    """Every audit has networks of its own, so that the tests below may take them as independent."""
    found = summary([audit(("digits/perceptron/wrong-60", number)) for number in range(FIRST + 500, FIRST + 540)])
    n = found["audits"]
    assert found["networks_ks"] > 0.01
    assert stats.binomtest(found["networks_at_5"], n, 0.05, alternative="greater").pvalue > 0.01
    assert stats.binomtest(found["accused"], n, 0.02, alternative="greater").pvalue > 0.01
    assert stats.binomtest(found["share_covered"], n, 0.9, alternative="less").pvalue > 0.01
    assert stats.binomtest(found["held_twenty"], n, 0.05, alternative="greater").pvalue > 0.01


def row(**other):
    said = {"says": "forgotten", "says_of_two": "forgotten"}
    seen = {"p_networks": 0.5, "p_rows": 0.5, "share": [-0.1, 0.1], **said}
    return {"setting": "s", **seen, "second": seen, "most_wealth": 1.0} | other


def test_the_table_counts_what_should_be_rare_and_what_should_hold():
    rows = [row(p_networks=(i + 0.5) / 20) for i in range(20)]
    accused = {"says": "not forgotten", "says_of_two": "not forgotten"}
    odd = row(p_networks=0.01, p_rows=0.01, share=[0.1, 0.2], most_wealth=25.0, **accused)
    late = row(second={**row(), "says_of_two": "not forgotten"})
    found = summary([*rows, odd, late])
    counts = {name: found[name] for name in COLUMNS}
    rare = {"networks_at_5": 2, "rows_at_2": 1, "accused": 1, "accused_in_two": 2, "held_twenty": 1}
    assert counts == {**rare, "share_covered": 21}
    assert found["networks_ks"] > 0.5
    assert summary([row(p_networks=0.01)] * 20)["networks_ks"] < 1e-6
    assert "| s | 20 |" in table(rows)
