"""The page on forgettable models shows what the results say."""

from benchmarks import forgettable_page


def test_tables_are_those_of_the_results():
    page = forgettable_page.PAGE.read_text(encoding="utf-8")
    assert forgettable_page.filled(page) == page


def test_what_the_page_says_about_requests_is_in_the_results():
    found = forgettable_page.pick(what="request")
    assert len(found) >= 8
    assert all(row["moments_equal"] and row["weights_equal"] for row in found)
    attacks = {row["model"]: row for row in forgettable_page.pick(what="attack")}
    after, never = attacks["after forgetting them"], attacks["never having held them (solved anew)"]
    assert after["largest_margin_gap_to_anew"] == 0
    assert (after["auc_ordinary"], after["auc_mislabelled"]) == (never["auc_ordinary"], never["auc_mislabelled"])
