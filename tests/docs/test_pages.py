"""What the pages promise: links lead somewhere, named tests exist, programs run, figures are those of the results."""

import importlib
import json
import re
from pathlib import Path
from typing import Any

import benchmarks.attack
import benchmarks.fold_requests
import benchmarks.frontier
import benchmarks.frontier_page
import benchmarks.large_page
import benchmarks.near_copies
import benchmarks.requests
import benchmarks.sequences
import pytest
import torch
from benchmarks.gauntlet_candidates import ELSEWHERE, TUNED
from benchmarks.gauntlet_totals import Line
from benchmarks.methods import PLACE, table

import spotlessnet as sn
from benchmarks import audit_gauntlet, gauntlet_page, gauntlet_totals, gauntlet_ways, vit_page
from spotlessnet.auditing.rows import read_rows
from spotlessnet.auditing.shadow_attack import u_lira
from spotlessnet.cli.entry import ENDED, WORDS
from spotlessnet.core.intervals import clopper_pearson
from spotlessnet.core.registry import with_registered
from spotlessnet.methods import SCRUBS
from spotlessnet.readouts import READOUTS
from tests.docs.blocks import PAGES, ROOT, blocks

DOCS = ROOT / "docs"
TABLE = DOCS / "which_method_when.md"
RESULTS = ROOT / "results"
DIGITS = RESULTS / "methods-digits.jsonl"
GENERATED = {"reproduction.md"}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\(([^)#\s]*)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if target and not target.startswith("http") and target.rpartition("/")[2] not in GENERATED:
            assert (page.parent / target).exists(), target
    for target, heading in re.findall(r"\]\(([^)#\s]*\.md)#([^)]+)\)", page.read_text(encoding="utf-8")):
        titles = re.findall(r"^#+ (.*)$", (page.parent / target).read_text(encoding="utf-8"), re.M)
        assert heading in [re.sub(r"[^\w]+", "-", title.lower()).strip("-") for title in titles], heading


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_are_in_the_menu(page):
    if page.parent != ROOT:
        on_the_site = name_of(page).removeprefix("docs/")
        assert f": {on_the_site}\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8") + "\n"


def test_every_equation_names_a_file_and_a_test_that_exist():
    text = (DOCS / "papers.md").read_text(encoding="utf-8")
    files = re.findall(r"`((?:core|operators|methods|readouts|bounds|training|auditing)/[\w/]+\.py)`", text)
    assert len(files) > 50
    for name in files:
        assert (ROOT / "src" / "spotlessnet" / name).is_file(), name
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(tests) > 50
    for place, name in tests:
        assert f"def {name}(" in (ROOT / place).read_text(encoding="utf-8"), f"{place}::{name}"


def table_rows(page: str) -> list[str]:
    return [line for line in (DOCS / page).read_text(encoding="utf-8").splitlines() if line.startswith("|")]


@pytest.mark.parametrize("kind", SCRUBS, ids=lambda kind: kind.__name__)
def test_every_method_has_a_row(kind):
    assert [row for row in table_rows("which_method_when.md") if row.startswith(f"| `{kind.__name__}` |")]
    file = f"`{kind.__module__.removeprefix('spotlessnet.').replace('.', '/')}.py`"
    row = [row for row in table_rows("papers.md") if file in row and "`tests/" in row]
    # The page lists equations with their tests; a method that is not there declares its paper and has a test itself.
    own = [path for path in (ROOT / "tests" / "methods").rglob("test_*.py") if kind.__name__ in path.read_text()]
    assert row or own, file


@pytest.mark.parametrize("readout", [*READOUTS.things(), u_lira], ids=lambda readout: readout.__name__)
def test_every_readout_has_a_row(readout):
    file = f"`{readout.__module__.removeprefix('spotlessnet.').replace('.', '/')}.py`"
    rows = [row for row in table_rows("papers.md") if file in row and "`tests/" in row]
    # As for methods: one that is not on the page declares its paper and has a test itself.
    own = [path for path in (ROOT / "tests" / "readouts").rglob("test_*.py") if readout.__name__ in path.read_text()]
    row = [row for row in rows if f"`{readout.__name__}`" in row]
    assert row or own, f"{readout.__name__}, {file}"


def test_every_public_name_is_on_a_page_of_the_api():
    """Named by its path, or among the members of a module that is."""
    pages = [DOCS / "api.md", *sorted((DOCS / "api").glob("*.md"))]
    text, listed = with_registered("\n".join(page.read_text(encoding="utf-8") for page in pages)), set[object]()
    for path, members in re.findall(
        r"^::: spotlessnet\.([\w.]+)\n(?:    options: \{members: \[([^\]]*)\]\})?", text, re.M
    ):
        *parents, last = path.split(".")
        try:
            module = importlib.import_module(f"spotlessnet.{path}")
        except ModuleNotFoundError:
            listed.add(getattr(importlib.import_module(".".join(["spotlessnet", *parents])), last))
        else:
            listed |= {getattr(module, name.strip()) for name in members.split(",")}
    assert "__version__" in text
    missing = [name for name in sn.__all__ if name != "__version__" and getattr(sn, name) not in listed]
    assert missing == []


def test_the_program_of_the_guide_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "forget.csv").write_text("person\nann\n")
    torch.manual_seed(0)
    given = {
        "model": torch.nn.Linear(4, 3),
        "init": torch.zeros(15),
        "x": torch.randn(60, 4),
        "y": torch.arange(60) % 3,
        "people": ["ann", "bob", "cy"] * 20,
    }
    programs = [block.text for block in blocks(DOCS / "forget_a_person.md") if block.language == "python"]
    for program in programs:  # each goes on where the one before it ended, as on the page
        exec(program, given)
    assert set(sn.read_weights(tmp_path / "scrubbed.safetensors")) == {"weight", "bias"}


def test_the_methods_and_readouts_that_pages_add_work():
    space: dict[str, Any] = {}
    for page in ("add_a_method.md", "add_a_readout.md"):
        for block in blocks(DOCS / page):
            # The pages leave out types, which the data classes do not need.
            exec(block.text, space)
    data = sn.Data.of((torch.randn(9, 4), torch.arange(9) % 3))
    trained = sn.Trained.of(torch.nn.Linear(4, 3), init=torch.zeros(15), weight_decay=0.1)
    split = sn.rows([1, 2])(data)
    scrubbed = sn.chain(space["Rewind"](1.0), sn.Fisher())(trained, split)
    assert not scrubbed.mean.any()
    assert scrubbed.diagnostics["rewound"] == 1.0
    assert 1 / 3 < float(space["Certainty"]()(trained, split)) <= 1


def test_exit_codes_are_those_of_the_command():
    text = (DOCS / "reading_the_report.md").read_text(encoding="utf-8").split("## All exit codes")[1]
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.M)}
    assert listed == {0, 1, 6, *ENDED, *WORDS}


def test_figures_are_those_of_the_results():
    found = [json.loads(line) for line in (ROOT / "results" / "gpu-operators.jsonl").read_text().splitlines()]
    text = " ".join(TABLE.read_text(encoding="utf-8").split())
    kernels = {row["exactness"]: row["seconds"] for row in found if row["what"].startswith("kernel")}
    assert f"took {kernels['tf32']:.2f} s with TF32 and {kernels['float32']:.2f} s in full float32" in text
    [product] = [row for row in found if row["what"].startswith("Gauss-Newton product") and row["vectors"] == 1]
    assert f"took {product['seconds']:.2f} s with TF32" in text
    [basis] = [row for row in found if row["what"].startswith("rank-200") and row["rows"] == 50_000]
    assert f"took {basis['seconds']:.0f} s, {basis['products']} products" in text
    assert f"{basis['tflops']:.0f} TFLOP/s, {basis['share_of_ceiling']:.0%}".replace("%", " %") in text


def test_what_is_said_of_ways_that_are_left_out_is_in_their_rows():
    rows = gauntlet_ways.read()
    page = gauntlet_ways.PAGE.read_text(encoding="utf-8")
    assert gauntlet_ways.PLACE.fill(page, gauntlet_ways.summary(rows)) == page
    # "None of these made a tuned network pass less often without accusing honest ones."
    passed, accused = (
        {way: gauntlet_ways.counts(rows, way, *names)[word] for way in gauntlet_ways.ASKED}
        for names, word in ((gauntlet_ways.TUNED, "forgotten"), (gauntlet_ways.HONEST, "not forgotten"))
    )
    for way in gauntlet_ways.WAYS:
        assert passed[way] >= passed["as shipped"] or accused[way] > accused["as shipped"], way
    assert {row["setting"] for row in rows} <= {*audit_gauntlet.CHOOSING}


def test_changelog_says_how_often_forgotten_denied_what_was_kept():
    """The share and its exact limits are the same at one look and in sequence, and the upper one is below the aim."""
    once = [row for row in gauntlet_page.read() if not row["method"]]
    found = {gauntlet_totals.DENIED.found(rows) for rows in (once, gauntlet_totals.in_sequence(once))}
    assert len(found) == 1, "CHANGELOG has one figure for both"
    [(wrong, of)] = found
    share = clopper_pearson(wrong, of)
    assert share.high <= (gauntlet_totals.DENIED.aim or 0)
    limits = f"{100 * share.low:.1f} to {100 * share.high:.1f} %"
    assert f"in {wrong} of {of} audits ({limits}), at one look as in sequence" in changelog()


def test_changelog_says_how_often_tuned_networks_pass_and_what_that_costs():
    once = [row for row in gauntlet_page.read() if not row["method"]]
    again, two = (gauntlet_totals.in_sequence(rows) for rows in (once, gauntlet_page.of_two_classes()))
    (six, of_six), (three, of_three) = (
        Line("tuned", TUNED, gauntlet_totals.PASSED).found(rows) for rows in (again, two)
    )
    text = changelog()
    more = f"and on three more of two classes in {three} of {of_three}"
    assert f"in sequence, they pass in {six} of {of_six}, {more}" in text
    known, unknown = (line.found(again) for line in gauntlet_totals.RETRAINED[2:])
    were, was = (
        line.found(gauntlet_totals.in_sequence(gauntlet_page.before())) for line in gauntlet_totals.RETRAINED[2:]
    )
    assert (
        f"are *forgotten* in {unknown[0]} of {unknown[1]} audits in sequence, and where it is known in {known[0]} of "
        f"{known[1]}; before, in {was[0]} of {was[1]} and {were[0]} of {were[1]}."
    ) in text
    passed, of = Line("tuned", ELSEWHERE, gauntlet_totals.PASSED).found([*again, *two])
    assert f"tunes those is not known by this: such networks pass in {passed} of {of}." in text


def changelog():
    return " ".join((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split())


def test_what_is_said_of_the_verdict_is_in_the_rows_of_the_gauntlet():
    rows = gauntlet_page.read()
    # "None served to choose anything."
    assert not {row["setting"] for row in (*rows, *gauntlet_page.of_two_classes())} & {*audit_gauntlet.CHOOSING}
    page, readme = (path.read_text(encoding="utf-8") for path in (gauntlet_page.PAGE, gauntlet_page.README))
    assert gauntlet_page.PLACE.fill(page, gauntlet_page.made(rows)) == page
    assert gauntlet_page.SHORT.fill(readme, gauntlet_page.short(rows)) == readme
    cheaper = gauntlet_page.CHEAPER.read_text(encoding="utf-8")
    assert gauntlet_page.SEQUENCE.fill(cheaper, gauntlet_totals.gained(rows)) == cheaper


def test_what_is_said_of_the_vit_is_in_its_rows():
    found = [json.loads(line) for line in (RESULTS / "vit.jsonl").read_text().splitlines()]
    page = TABLE.read_text(encoding="utf-8")
    for exactness, place in vit_page.PLACES.items():
        assert place.fill(page, vit_page.summary(found, exactness)) == page
    # Nothing ran out of memory, limits were kept, and a product is at most three epochs.
    assert not any("OutOfMemory" in row.get("failed", "") for row in found)
    assert all(row["peak_gib"] <= (row["memory_limit_gib"] or 40) for row in found if "epochs" in row)
    products = [row for row in found if row["what"] == "Gauss-Newton product" and "seconds" in row]
    assert len(products) >= 4
    assert all(row["epochs"] <= 3 for row in products if row["memory_limit_gib"] is None)


def test_an_extrapolated_row_of_the_vit_is_called_so():
    row = {
        "what": "NTK step", "rows": 10_000, "memory_limit_gib": None, "iterations": 2, "exactness": "tf32",
        "images_measured": 2000, "seconds_measured": 8.0, "seconds_extrapolated": 40.0, "epochs": 4.0, "peak_gib": 9.0,
    }  # fmt: skip
    made = vit_page.table([row], "tf32").splitlines()[-1]
    assert made.startswith("| NTK step, 2 products | 10,000 | ≈ 40 (2,000 images measured) | ≈ 4.0 | 9.0 GiB | – |")
    made = vit_page.table([row | {"beside": "a training on the GPU"}], "tf32").splitlines()[-1]
    assert "| ≈ 40 \\* (2,000 images measured) | ≈ 4.0 \\* | 9.0 GiB | – |" in made


def test_the_table_of_methods_is_the_one_of_its_rows():
    text = TABLE.read_text(encoding="utf-8")
    assert PLACE.fill(text, table(read_rows(DIGITS))) == text
    assert text.count(PLACE.begin) == text.count(PLACE.end) == 1


@pytest.mark.parametrize(
    ("module", "rows", "page"),
    [
        (benchmarks.attack, "attack-digits.jsonl", "docs/which_method_when.md"),
        (benchmarks.requests, "requests.jsonl", "results/requests.md"),
        (benchmarks.sequences, "sequences.jsonl", "results/requests.md"),
        (benchmarks.fold_requests, "tutored.jsonl", "results/requests.md"),
        (benchmarks.near_copies, "near_copies.jsonl", "results/requests.md"),
    ],
)
def test_measured_tables_are_those_of_their_rows(module, rows, page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert module.table(read_rows(ROOT / "results" / rows)).strip() in text
    begin, end = (module.PLACE.begin, module.PLACE.end) if hasattr(module, "PLACE") else (module.BEGIN, module.END)
    assert text.count(begin) == text.count(end) == 1


def test_tables_of_large_and_attacked_networks_are_those_of_their_rows():
    full, frontier = ((RESULTS / page).read_text(encoding="utf-8") for page in ("full_size.md", "frontier.md"))
    findings = (DOCS / "full_size.md").read_text(encoding="utf-8")
    made = benchmarks.large_page.summary(RESULTS / "large.jsonl")
    assert benchmarks.large_page.PLACE.fill(findings, made) == findings
    for rows in ("large.jsonl", benchmarks.large_page.HALVES):
        assert benchmarks.large_page.table(ROOT / "results" / rows) in full
    assert benchmarks.large_page.summary(ROOT / "results" / "large.jsonl") in full
    assert benchmarks.large_page.clock_table(ROOT / "results" / benchmarks.large_page.CLOCK) in full
    for rows in (benchmarks.large_page.TRIALS, benchmarks.large_page.BEFORE):
        assert benchmarks.large_page.trial_table(ROOT / "results" / rows) in full
    settings = [f"{model} {cohort}" for model in benchmarks.frontier.MODELS for cohort in benchmarks.frontier.COHORTS]
    paths = [str(ROOT / "results" / f"frontier-{name}.jsonl") for name in ("confirm", "taught", "earlier")]
    assert benchmarks.frontier_page.gap_table(paths, settings) in frontier
    assert benchmarks.frontier_page.cost_table(paths[1], settings) in frontier
    assert benchmarks.frontier_page.gap_table([str(ROOT / "results" / "frontier-fifth.jsonl")], settings) in frontier
    assert benchmarks.attack.table(read_rows(ROOT / "results" / "attack-cifar.jsonl")) in frontier


def test_what_is_said_of_sequences_is_in_their_rows():
    rows = read_rows(ROOT / "results" / "sequences.jsonl")
    text = " ".join((DOCS / "requests.md").read_text(encoding="utf-8").split())

    def total(method: str, readout: str) -> int:
        return round(sum(row.value for row in rows if (row.method, row.readout) == (method, readout)))

    said = benchmarks.sequences

    def counts(method: str, readout: str) -> str:
        return f"{total(method, readout)} of {total(method, said.LOOKED[readout]):,}"

    statistics, fold_models, retrained, gone = (
        [counts(method, readout) for readout in (said.LOSS, said.SCORE)]
        for method in (said.AT_HAND, said.FOLD_MODELS, said.RETRAINED, said.PURGED)
    )
    undone = f"{statistics[0]} looks in the loss, {statistics[1]} in the score | {fold_models[0]} and {fold_models[1]}"
    assert f"| undone, in the same runs | {undone} |" in text
    assert f"Retraining each time: {retrained[0]} in the loss, {retrained[1]} in the score." in text
    # In words: less often than retraining, for statistics with what they are held to or without.
    for readout in (said.LOSS, said.SCORE):
        shares = {m: total(m, readout) / total(m, said.LOOKED[readout]) for m in said.METHODS}
        assert max(shares[m] for m in (said.AT_HAND, said.SAMPLE, said.PURGED)) < shares[said.RETRAINED]
    asked = {m: 10 * len({(r.experiment, r.seed) for r in rows if r.method == m}) for m in said.METHODS}
    served = {m: f"{total(m, said.SERVED):,} of {asked[m]:,}" for m in said.METHODS}
    assert f"| served | {served[said.AT_HAND]} | {served[said.FOLD_MODELS]} |" in text
    assert f"{served[said.PURGED]} served, {gone[0]} looks undone in the loss" in text
    sequences = len({(row.experiment, row.seed) for row in rows})
    assert f"{sequences} sequences of ten requests" in text
    whole = total(said.RETRAINED, said.LOSS)
    last = said.SETTINGS[-1].name
    rows = [row for row in rows if row.experiment != last]  # which `total` reads
    assert f"Most of the former ({whole - total(said.RETRAINED, said.LOSS)}) come from one setting, {last}." in text
    others = [counts(m, said.LOSS) for m in (said.RETRAINED, said.AT_HAND, said.FOLD_MODELS)]
    assert f"{others[0]} by retraining, {others[1]} from statistics, {others[2]} from fold models." in text
