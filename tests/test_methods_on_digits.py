"""Methods against retraining on digits. Minutes; writes nothing. Figures: `results/methods-digits.jsonl`."""

import pytest
from benchmarks.methods import CLASS, WRONG, distances, run, table

PAPERS = ("NTK", "NTK, then 3 epochs", "Newton", "Fisher noise", "variational noise")


@pytest.mark.slow
def test_every_method_of_the_papers_is_closer_to_retraining_than_doing_nothing():
    rows = run(seeds=3)
    found = distances(rows)
    for method in PAPERS:
        gains = [found[request, method] < found[request, "original"] for request in (WRONG, CLASS)]
        assert any(gains), method
    for request in (WRONG, CLASS):
        where = f"{request}, linear user weights"
        assert found[where, "mixed-linear"] < 0.01 * found[where, "original"]
        assert found[request, "retrained"] < found[request, "NTK, then 3 epochs"] < found[request, "NTK"]
    assert "| mixed-linear |" in table(rows)
