"""Methods against retraining on digits. Minutes; writes nothing. Figures: `results/methods-digits.jsonl`."""

import pytest
from benchmarks.methods import CLASS, DISTANCE, WRONG, distances, run, table

from spotlessnet.core.intervals import t_interval

PAPERS = ("NTK", "NTK, then 3 epochs", "Newton", "Fisher noise", "variational noise")


@pytest.mark.slow
def test_every_method_of_the_papers_is_closer_to_retraining_than_doing_nothing():
    rows = run(seeds=5)
    found = distances(rows)
    value = {(row.experiment, row.method, row.seed): row.value for row in rows if row.readout == DISTANCE}
    for method in PAPERS:  # over paired trainings, beyond chance, on rows that had to be learnt by heart
        seeds = [seed for request, name, seed in value if (request, name) == (WRONG, method)]
        gains = [value[WRONG, "original", seed] - value[WRONG, method, seed] for seed in seeds]
        assert t_interval(gains).low > 0, method
    for request in (WRONG, CLASS):
        where = f"{request}, linear user weights"
        assert found[where, "mixed-linear"] < 0.01 * found[where, "original"]
        assert found[request, "retrained"] < found[request, "NTK, then 3 epochs"] < found[request, "NTK"]
    assert "| mixed-linear |" in table(rows)
