"""What stands first on the page: what it is about, the verdict in chips, and one picture; nothing speaks against it."""

import html
import math
import re
from dataclasses import replace

import pytest

from spotlessnet.auditing.rows import Row
from spotlessnet.auditing.summary import summarise
from spotlessnet.auditing.verdict import ROWS, SHARE, Check, Checks, Verdict
from spotlessnet.report.channels import LEFT, RIGHT, Channel, bands, channels
from spotlessnet.report.chips import EXCUSED, PASS, chip_of, mark, self_tests
from spotlessnet.report.page import page
from tests.report.example import page_of_example, report, rows


def drawn(told) -> dict[str, Channel]:
    return {c.name: c for c in channels(told.rows, summarise(told.rows), told.method, told.checks)}


def test_request_date_network_and_digests_stand_above_the_verdict():
    header = {"request": "ab" * 32, "network": "MLP, 4,810 weights", "new network": f"SHA-256 {'cd' * 32}"}
    text = page(replace(report(), header=header))
    top = text[: text.index('class="word"')]
    for value in (*header.values(), "2026-01-01"):
        assert f"<dd>{value}</dd>" in top


def test_the_summary_comes_before_everything_that_is_folded():
    text = page_of_example()
    order = ['class="header"', 'class="word"', 'class="chips"', 'class="channels"', 'id="asked"', "<details"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)


def test_contents_lead_to_parts_of_the_page():
    text = page_of_example()
    targets = re.findall(r'href="#([a-z]+)"', text[text.index("<nav") : text.index("</nav>")])
    assert len(targets) == 8
    assert all(f'id="{target}"' in text for target in targets)


def test_under_forgotten_nothing_looks_like_a_failure():
    text = page_of_example()
    assert not any(sign in text for sign in ("▲", "▼", "✗", 'class="chip bad"', 'class="chip open"'))
    # In the example unlearned networks are further from retrained ones than chance in two readouts: said, in no colour.
    assert "≠" in text


def test_marks_of_the_judged_method_are_those_of_its_checks():
    told = report("not forgotten")
    verdict = told.verdict
    assert verdict is not None
    failed = Checks((Check("error on test rows", "different", 0.1, 0.05, 0.15, 0.01), *verdict.checks[:1]))
    told = replace(told, verdict=replace(verdict, checks=failed))
    chip = drawn(told)["error on test"].chip
    assert chip is not None
    assert (chip.sign, chip.tone) == ("✗", "bad")
    # Other methods are not judged, so their marks have no colour, however far they are.
    lines = {(line.method, line.readout): line for line in summarise(told.rows)}
    for method in ("original", "fine-tune"):
        other = mark(lines[method, "error on forget"], Checks(), (0.28, 0.32))
        assert other is not None
        assert (other.sign, other.tone) == ("≠", "soft")


def test_margins_that_two_checks_are_about_show_the_worse_of_them():
    told = report("not forgotten")
    assert told.verdict is not None
    share, rows = Check(SHARE, "same", 0.17, 0.15, 0.19, 0.2), Check(ROWS, "different", 0.0005, 0.0, 0.0, 0.02)
    lines = {(line.method, line.readout): line for line in summarise(told.rows)}
    line = replace(lines[told.method, "error on forget"], readout="margin on forget")
    for checks in (Checks((share, rows)), Checks((rows, share))):
        chip = mark(line, checks, (0.0, 0.1))
        assert chip is not None
        assert (chip.word, chip.tip) == ("fail", f"check “{ROWS}”")
    alone = mark(line, Checks((share,)), (0.0, 0.1))
    assert alone is not None
    assert alone.word == "pass"


@pytest.mark.parametrize(("mean", "sign"), [(0.3, "="), (0.31, "≈"), (0.5, "≠")])
def test_a_mark_says_how_a_readout_lies_to_single_retrained_networks(mean, sign):
    made = [Row("e", "retrained", "r", s, 0.3 + 0.02 * (s - 3)) for s in range(7)]
    # Differences from the partner of the same seed hardly vary, so that 0.01 is more than chance.
    made += [Row("e", "m", "r", s, 0.3 + 0.02 * (s - 3) + (mean - 0.3) + 1e-4 * (-1) ** s * (s < 6)) for s in range(7)]
    found = mark(summarise(made)[1], Checks(), (0.24, 0.36))
    assert found is not None
    assert found.sign == sign


def test_the_audit_s_self_tests_have_chips_too():
    def signs(oracle, power):
        return [chip.sign for _, chip in self_tests(Verdict("inconclusive", "", 0.1, 8, oracle, power))]

    assert signs("forgotten", "not forgotten") == ["✓", "✓"]
    assert signs("not forgotten", "forgotten") == ["✗", "✗"]
    assert signs("inconclusive", "inconclusive") == ["?", "?"]


def test_retrained_networks_are_at_one_place_and_the_original_to_their_left():
    found = drawn(report())
    places = {c.retrained for c in found.values()}
    assert max(places) - min(places) < 1e-9
    for c in found.values():
        assert LEFT <= c.original < c.retrained < RIGHT
        assert c.band[0] <= c.retrained <= c.band[1]
        assert c.range[0] <= c.unlearned <= c.range[1]


def test_places_are_shares_of_the_way_from_the_original_to_retraining():
    values = {"original": (0.0, 0.0), "m": (0.75, 0.75), "retrained": (0.9, 1.1)}
    made = [Row("e", name, "r", s, v) for name, pair in values.items() for s, v in enumerate(pair)]
    [c] = channels(made, summarise(made), "m", Checks())
    # By hand: the original is one unit left of retraining; to the right there is a quarter of a unit.
    unit = (RIGHT - LEFT) / 1.25
    assert c.original == pytest.approx(LEFT)
    assert c.retrained == pytest.approx(LEFT + unit)
    assert c.unlearned == pytest.approx(LEFT + 0.75 * unit)
    assert c.band == pytest.approx((LEFT + 0.9 * unit, LEFT + 1.1 * unit))


def test_what_goes_beyond_retraining_is_right_of_it_and_on_the_page():
    values = {"original": (1.0, 1.0), "m": (-4.0, -4.0), "retrained": (-0.1, 0.1)}
    made = [Row("e", name, "r", s, v) for name, pair in values.items() for s, v in enumerate(pair)]
    [c] = channels(made, summarise(made), "m", Checks())
    assert LEFT <= c.original < c.retrained < c.unlearned <= RIGHT + 1e-9


def test_a_channel_where_the_original_is_as_retrained_does_not_blow_up_chance():
    values = {"original": (0.1001, 0.1001), "m": (0.1, 0.1), "retrained": (0.09, 0.11)}
    made = [Row("e", name, "r", s, v) for name, pair in values.items() for s, v in enumerate(pair)]
    [c] = channels(made, summarise(made), "m", Checks())
    assert c.band[0] < c.original < c.band[1]
    assert abs(c.original - c.retrained) < 1


def test_all_alike_and_unknown_values_are_drawn_or_left_out():
    same = [Row("e", name, "r", s, 1.0) for name in ("original", "m", "retrained") for s in range(2)]
    nan = [replace(row, readout="gone", value=math.nan) for row in same]
    without = [Row("e", "m", "bound", s, 1.0) for s in range(2)]
    found = channels([*same, *nan, *without], summarise([*same, *nan, *without]), "m", Checks())
    assert [c.name for c in found] == ["r"]
    assert all(math.isfinite(v) for v in (*found[0].band, found[0].original))


def test_checks_of_the_verdict_come_first_in_the_picture():
    made = tuple(sorted(rows(), key=lambda row: row.readout != "relearn time"))
    assert next(iter(drawn(replace(report(), rows=made)))) == "error on test"


def test_bands_are_of_networks_not_of_means():
    low, high = bands(rows())["retrained", "relearn time"]
    values = [row.value for row in rows() if (row.method, row.readout) == ("retrained", "relearn time")]
    assert (low, high) == (min(values), max(values))


def test_hostile_names_are_escaped_wherever_the_page_shows_them():
    evil = '"><script>alert(1)</script>'
    told = report()
    assert told.verdict is not None
    checks = Checks([Check(evil, "same", 0.0, 0.0, 0.0, 0.1, evil)])
    renamed = tuple(
        replace(row, method=evil if row.method == "NTK" else row.method, readout=f"{evil}{row.readout}", unit=evil)
        for row in told.rows
    )
    text = page(
        replace(
            told,
            method=evil,
            rows=renamed,
            header={evil: evil},
            verdict=replace(told.verdict, checks=checks),
            made={evil: evil},
        )
    )
    assert "<script" not in text
    assert html.escape(evil, quote=False).split("&lt;")[1] in text


def test_limits_of_shares_are_shares():
    few = [Row("x", "retrained", "error", seed, value, unit="share of rows") for seed, value in enumerate((0.0, 0.5))]
    assert summarise(few)[0].limits == (0.0, 1.0)
    other = [replace(row, unit="nats") for row in few]
    assert summarise(other)[0].limits[0] < 0
    assert math.isinf(summarise(few[:1])[0].limits[1])


def test_a_check_that_passes_outside_its_margin_is_marked_as_explained():
    inside, outside = (Check("error on forgotten rows", "same", 0.0, -0.005, high, 0.01) for high in (0.005, 0.04))
    assert chip_of(inside) is PASS
    assert chip_of(outside) is EXCUSED
    assert chip_of(Check("error on test rows", "same", -0.1, -0.2, 0.0, 0.01, guards=True)) is PASS
    assert chip_of(Check("margins row by row", "same", 0.5, math.nan, math.nan, math.nan)) is PASS
    assert chip_of(Check("error on forgotten rows", "different", 0.1, 0.05, 0.2, 0.01)).word == "fail"
