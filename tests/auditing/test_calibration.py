"""The verdict with real trainings on digits. Minutes; writes nothing. Figures: `results/calibration.json`."""

import pytest
from benchmarks.calibration import calibrate


@pytest.mark.slow
def test_retrained_networks_pass_originals_are_caught_p_values_are_uniform_and_intervals_cover():
    figures = calibrate(pairs=120, draws=200, nulls=500, sets=1000)
    assert figures["error_on_forgotten"]["original"] < 0.3 < 0.9 < figures["error_on_forgotten"]["retrained"]
    assert figures["retrained_pass"]["share"] >= 0.95
    assert figures["original_caught"]["share"] >= 0.95
    assert figures["one_row_kept_caught"]["share"] >= 0.95
    assert figures["three_rows_kept_caught"]["share"] >= 0.95
    assert figures["trained_otherwise_pass"]["share"] >= 0.5
    for name, found in figures["null_p_values"].items():
        assert found["ks_p"] > 0.01, name
    for name in ("mean margin", "remembered share"):
        assert 0.93 <= figures["coverage_of_95"][name] <= 0.97, name
