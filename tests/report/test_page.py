"""The page tells everything, to everyone, and asks nothing of the network."""

import html
import html.parser
import math
import re
from dataclasses import replace

import pytest

from spotlessnet.auditing.audit_report import Cost, Curves
from spotlessnet.auditing.rows import Row
from spotlessnet.auditing.verdict import NEVER_SAW, Checks
from spotlessnet.auditing.wording import NEXT
from spotlessnet.report.exports import as_csv, as_json_lines, as_model_card
from spotlessnet.report.number import number
from spotlessnet.report.page import cost_in_words, in_plain_words, page
from tests.report.example import page_of_example, report

VOID = {"meta", "br", "link", "img", "hr", "input"}


class Outline(html.parser.HTMLParser):
    """Checks that tags nest, and collects what a screen reader would use."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.labels: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        if named.get("aria-label"):
            self.labels.append(named["aria-label"] or "")
        if named.get("id"):
            self.ids.append(named["id"] or "")
        if tag in {"h1", "h2", "h3"}:
            self.headings.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def outline(text: str) -> Outline:
    read = Outline()
    read.feed(text)
    assert not read.open
    return read


def test_the_page_holds_every_part_and_nests():
    text = page_of_example()
    read = outline(text)
    for part in (
        "✓ Forgotten",
        "What was asked",
        "Original, unlearned, retrained",
        "Evidence",
        "Costs",
        "Limits",
        "Run it again",
    ):
        assert part in text
    # Seven figures, four channels of the first picture, and three marks of its legend, which are words as well.
    assert text.count("<figure") == 7
    assert text.count("<svg") == text.count('role="img"') + 3 == 14
    assert len(read.ids) == len(set(read.ids))
    assert read.headings[0] == "h1"
    assert read.headings.count("h1") == 1


def test_a_sign_stays_on_the_line_of_its_word():
    signs = re.findall(r'<span class="chip[^>]*><span aria-hidden="true">([^<]*)</span>', page_of_example())
    assert len(signs) > 5
    assert all(sign.endswith("&nbsp;") for sign in signs)


def test_nothing_is_asked_of_the_network():
    text = page_of_example()
    outside = re.findall(r'(?:src|href|url)\s*[=(]\s*["\']?(https?:[^"\')\s]+)', text)
    assert outside == []
    assert "<script" not in text
    assert "default-src 'none'" in text


def test_the_same_story_gives_the_same_bytes():
    assert page(report()) == page_of_example()


def test_every_figure_can_be_heard():
    labels = outline(page_of_example()).labels
    assert any("mean confidence: original" in label for label in labels)
    assert all(len(label) > 5 for label in labels)


@pytest.mark.parametrize(
    ("word", "tone"), [("forgotten", "good"), ("not forgotten", "bad"), ("inconclusive", "open"), (NEVER_SAW, "good")]
)
def test_each_verdict_has_its_colour_and_its_words(word, tone):
    text = page_of_example(word)
    assert f'class="verdict {tone}"' in text
    beginnings = {
        "forgotten": "knows no more of the 25 forgotten rows than networks that never saw them",
        "not forgotten": "should not be released",
        "inconclusive": "can say neither",
        NEVER_SAW: "none could be expected",
    }
    assert beginnings[word] in text
    assert f"Next: {NEXT[word][0].upper()}{NEXT[word][1:]}.".replace("`", "") in re.sub(
        "</?code>", "", html.unescape(text)
    )
    assert "`" not in text[: text.index("<footer>")]


def test_the_page_of_a_damaged_network_takes_no_comfort_in_checks_that_pass():
    """It said how little could be left unseen, and to train more pairs, beside "proves nothing about forgetting"."""
    told = report("inconclusive")
    assert told.verdict is not None
    share, utility = told.verdict.checks
    broken = replace(told.verdict, checks=Checks([share, replace(utility, state="different", guards=True)]))
    text = page(replace(told, verdict=broken))
    assert "say nothing about forgetting here" in text
    assert "could be left unseen" not in text
    assert "Next: Do not use this network: it answers worse than retrained ones" in text
    assert "could be left unseen" in page(told)


@pytest.mark.parametrize(
    ("share", "told"), [(0.0, "1"), (0.0004, "1"), (0.014, "2"), (0.034, "4"), (0.2, "20"), (0.5, "50")]
)
def test_what_could_be_left_unseen_is_rounded_up(share, told):
    """The fault before: "less than 0 % of the original's memory", and "less than 3 %" of 3.4 %."""
    example = report()
    assert example.verdict is not None
    text = page(replace(example, verdict=replace(example.verdict, resolution=share)))
    assert f"at most {told} % of the original&#39;s memory could be left unseen" in text


def test_without_an_audit_the_page_says_that_there_is_no_verdict():
    told = replace(report(), verdict=None, limits=["Nothing could be retrained."])
    assert "There is no verdict" in page(told)
    assert "Not judged" in page(told)
    assert "Why: Nothing could be retrained." in page(told)


def test_words_from_outside_are_escaped():
    hostile = replace(report(), title="<script>alert(1)</script>", request={"asked for": "<img src=x onerror=1>"})
    text = page(hostile)
    assert "<script>" not in text
    assert "<img" not in text


def test_ids_never_stand_on_the_page():
    assert "alice" not in page(replace(report(), request={"asked for": "ids in column 'name'", "rows to forget": 2}))


def test_retraining_that_is_cheaper_is_said_plainly():
    dear = replace(report(), costs=[Cost("NTK", 9.0), Cost("retrained", 3.0)])
    assert cost_in_words(dear).startswith("At this size retraining is cheaper: it took 3 s, NTK 9 s. Retrain")
    assert cost_in_words(report()) == "NTK took 0.9 s, 23% of one retraining (3.9 s)."


def test_a_story_with_next_to_nothing_still_makes_a_page():
    bare = replace(
        report(), rows=(), verdict=None, curves=Curves(), costs=(), settings={}, assumed=(), lost=(), rerun_command=""
    )
    assert "Limits" in page(bare)
    outline(page(bare))


def test_one_seed_shows_numbers_without_intervals_or_marks():
    one = replace(report(), rows=tuple(row for row in report().rows if row.seed == 0))
    text = page(one)
    assert "Mean over 1 seed," in text
    assert not any(f">{sign}<" in text for sign in "=≈≠")


def test_a_capped_readout_is_shown_as_more_than_the_cap():
    rows = tuple(Row("e", "retrained", "relearn time", s, 100.0, censored=True) for s in range(3))
    assert "&gt; 100" in page(replace(report(), rows=rows))


def test_infinite_nats_are_shown_and_not_drawn():
    rows = tuple(Row("e", m, "white box", s, math.inf) for m in ("NTK", "retrained") for s in range(3))
    assert "∞" in page(replace(report(), rows=rows, curves=Curves()))


def test_exports_tell_the_same():
    told = report()
    assert len(as_csv(told.rows).splitlines()) == len(told.rows) + 1
    assert Row.from_json(as_json_lines(told.rows).splitlines()[0]).key == told.rows[0].key
    card = as_model_card(told, "ab" * 32)
    assert card.startswith("## Forgetting\n\n**Forgotten.** After scrubbing")
    assert "- remembered share: same\n" in card
    assert "\nWhy: Consistent with retraining in every check.\n" in card
    assert "0.0" not in card  # it outlasts the purge
    assert "sha256:abab" in card


def test_numbers_are_short():
    assert [number(v) for v in (0, 1.0, -2.5, -math.inf, "text")] == ["0", "1", "-2.5", "−∞", "text"]


def test_plain_words_name_the_count():
    assert "the 25 forgotten rows" in in_plain_words(report())


def test_a_notebook_shows_the_page_in_a_frame_of_its_own():
    shown = report()._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')
    assert "✓ Forgotten" in shown


@pytest.mark.parametrize("resolution", [math.inf, math.nan, 3.2])
def test_what_cannot_be_seen_has_no_number(resolution):
    told = report("inconclusive")
    checks = [replace(c, note="beyond matched controls nan [-inf, inf]") for c in told.checks]
    assert told.verdict is not None
    verdict = replace(told.verdict, resolution=resolution, checks=Checks(checks))
    text = html.unescape(page(replace(told, verdict=verdict)))
    assert "With so many, not even the whole of the original's memory" in text
    assert not re.search(r"\b(inf|nan)\b", re.sub(r"<style.*?</style>", "", text, flags=re.S))
    assert "inf" not in str(verdict).partition("\n")[0].partition("(")[2]
