"""Audits of AdamW-trained networks: rows of their own, counted as they came out, none begun too late."""

from benchmarks import calibration_adamw as calibration
from spotlessnet.datasets import digits


def test_audits_draw_rows_of_their_own_and_wrong_labels_go() -> None:
    one, again, other = (calibration.wrong_labels(number) for number in (0, 0, 1))
    assert len(one.forget) == calibration.WRONG
    assert len(one.whole) == calibration.TRAINED_ON
    assert one.whole.rows.equal(again.whole.rows)
    assert not one.whole.rows.equal(other.whole.rows)
    true = dict(enumerate(digits.load().train.labels().tolist()))
    for row, label in zip(one.forget.rows.tolist(), one.forget.labels().tolist(), strict=True):
        assert label != true[row]
    for row, label in zip(one.retain.rows.tolist(), one.retain.labels().tolist(), strict=True):
        assert label == true[row]


def test_one_audit_lets_retrained_networks_pass_and_catches_the_original() -> None:
    found = {row["candidate"]: row["outcome"] for row in calibration.audit(950)}
    assert found == calibration.WANTED


def test_the_table_counts_what_should_be() -> None:
    rows = [{"candidate": "retrained", "outcome": "forgotten"}] * 19
    rows += [{"candidate": "retrained", "outcome": "inconclusive"}, {"candidate": "original", "outcome": "forgotten"}]
    made = calibration.table(rows)
    assert "| retrained | forgotten | 19 of 20 |" in made
    assert "| original | not forgotten | 0 of 1 |" in made


def test_no_audit_begins_after_the_time_is_over() -> None:
    assert list(calibration.run([0, 1], 1, stop=0.0)) == []
