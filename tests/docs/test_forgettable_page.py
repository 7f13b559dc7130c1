"""The page on forgettable models shows what the results say."""

from statistics import mean, stdev
from typing import Any

import pytest
from scipy import stats

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


def said() -> str:
    """The page without its line breaks."""
    return " ".join(forgettable_page.PAGE.read_text(encoding="utf-8").split())


def found_of(core: float, epochs: int, views: int) -> list[dict[str, Any]]:
    rows = forgettable_page.pick(what="forgettable", core=core, epochs=epochs)
    return [row for row in rows if forgettable_page.views_of(row) == views]


@pytest.mark.parametrize(
    ("core", "epochs", "views", "seeds", "listed"),
    [
        (0.1, 50, 4, [0, 1, 2], "(seeds 0, 1, 2: {})"),
        (0.25, 30, 6, [0, 1, 2], "(seeds 0 to 2: {})"),
        (0.25, 21, 6, [3, 4, 5], "(seeds 3, 4, 5: {})"),
    ],
)
def test_what_the_page_says_about_three_seeds_is_in_the_results(core, epochs, views, seeds, listed):
    rows = found_of(core, epochs, views)
    found = forgettable_page.more(rows)
    assert sorted(found) == seeds
    points = [found[seed] for seed in seeds]
    # Halves of a hundredth are not rounded down by what binary numbers cannot hold.
    each = ", ".join(f"{point + 1e-9:.2f}" for point in points)
    text = said()
    assert f"{mean(points) + 1e-9:.2f} points" in text
    # The table rounds as the text does.
    assert f"{min(points) + 1e-9:+.2f} to {max(points) + 1e-9:+.2f}" in text
    assert listed.format(each) in text
    if epochs != 30:
        half = stats.t.ppf(0.975, 2) * stdev(points) / 3**0.5
        assert f"{mean(points) - half:.2f} to {mean(points) + half:.2f}" in text


def test_what_the_page_says_about_the_same_views_is_in_the_results():
    tenth, quarter = (
        mean(forgettable_page.more_than_same_views(found_of(*which), "error").values()) + 1e-9
        for which in ((0.1, 50, 6), (0.25, 21, 6))
    )
    assert f"{tenth:.2f} points at 10 % with six views, {quarter:.2f} at 25 %" in said()


@pytest.mark.parametrize("shards", [5, 20])
def test_what_the_page_says_about_sisa_is_in_the_results(shards):
    points = forgettable_page.more(forgettable_page.pick(what="SISA", shards=shards))
    assert sorted(points) == [0, 1, 2]
    lowest, highest = min(points.values()) + 1e-9, max(points.values()) + 1e-9
    text = said()
    assert f"{mean(points.values()) + 1e-9:.2f} " in text
    assert f"{lowest:.2f} to {highest:.2f})" in text


def test_what_the_page_says_about_times_is_in_the_results():
    timed, tune = forgettable_page.latest(), forgettable_page.alone()
    hundred, whole = timed[100]["seconds"], timed[max(timed)]["seconds"]
    text = said()
    assert f"the {tune:.0f} s that one fine-tuning took in the same process" in text
    assert f"100 images go in {1000 * hundred:.0f} ms, {100 * hundred / tune:.3f} % of that fine-tuning" in text
    assert f"a class in {100 * whole / tune:.3f} %" in text
    of = {
        (row["core"], row["seed"], row["examples"]): 100 * row["seconds"] / forgettable_page.alone(row["seed"])
        for row in forgettable_page.pick(what="request", process="warm")
    }
    quarter = [of[0.25, seed, 100] for seed in (3, 4, 5)]
    assert "it is {:.3f}, {:.3f} and {:.3f} % for 100 images".format(*quarter) in text
    many = [share for (core, _, size), share in of.items() if core == 0.25 and size > 1000]
    assert f"{min(many):.2f} to {max(many):.2f} % for a class of some 3,700" in text
    before = [of[0.1, seed, 100] for seed in range(3)]
    whole_before = [share for (core, seed, size), share in of.items() if core == 0.1 and seed < 3 and size > 1000]
    assert f"100 images took {min(before):.3f} to {max(before):.3f} %" in text
    assert f"a class {min(whole_before):.2f} to {max(whole_before):.2f} %" in text
    [row] = forgettable_page.pick(what="sequence", seed=forgettable_page.LATEST)
    first, last, longest = (1000 * row[f"seconds_{part}"] for part in ("first_quarter", "last_quarter", "longest"))
    assert f"{first:.0f} ms each in the first quarter, {last:.0f} ms in the last (medians), {longest:.0f} ms" in text
    assert row["moments_equal"]
    assert row["weights_equal"]


def test_what_the_page_says_about_the_one_off_is_in_the_results():
    def share(row: dict[str, Any], tune: float) -> float:
        return sum(row[f"seconds_{part}"] for part in ("core", "features", "fit")) / tune

    warm = forgettable_page.pick(what="forgettable", process="warm")
    shares = {(row["core"], row["seed"]): share(row, forgettable_page.alone(row["seed"])) for row in warm}
    quarter = [shares[0.25, seed] for seed in (3, 4, 5)]
    text = said()
    assert f"it takes {min(quarter):.2f} to {max(quarter):.2f} of one (seeds 3, 4, 5)" in text
    assert f"six views and 50 epochs {shares[0.1, 3]:.2f} (seed 3)" in text
    assert f"four views {shares[0.1, 1]:.2f} and {shares[0.1, 2]:.2f} (seeds 1 and 2;" in text
    assert f"to choose kernels for them, {shares[0.1, 0]:.2f})" in text
    [cold] = forgettable_page.pick(what="forgettable", epochs=75, seed=0, shared_gpu=None, beside=None)
    new = forgettable_page.pick(what="fine-tuning", seed=0)[0]["seconds"]
    assert f"Each in a new process, with 75 epochs, it was {share(cold, new):.2f};" in text


def test_what_the_page_says_about_text_is_in_the_results():
    of = {what: [row["accuracy"] for row in forgettable_page.pick(forgettable_page.TEXT, what=what)]
          for what in ("fine-tuning", "logistic regression", "forgettable")}  # fmt: skip
    assert len(of["fine-tuning"]) == 3
    tuned, [linear], ours = mean(of["fine-tuning"]), of["logistic regression"], of["forgettable"]
    text = said()
    assert f"{linear - max(ours):.1f} to {linear - min(ours):.1f} points behind logistic regression" in text
    assert f"{tuned - max(ours):.1f} to {tuned - min(ours):.1f} behind fine-tuning ({tuned:.1f} % as the mean" in text
    assert f"{linear - ours[1]:.1f} and {tuned - ours[1]:.1f} points behind" in text
