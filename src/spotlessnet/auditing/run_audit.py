"""`audit`: one method, one request, the battery of readouts over paired seeds, and one report of what they tell."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from torch import nn

from spotlessnet.auditing.attack_checks import checks_of_attack
from spotlessnet.auditing.audit_report import AuditReport, Cost, Curves
from spotlessnet.auditing.bank import Bank
from spotlessnet.auditing.battery import battery_rows, delivered_rows, readouts_of_one, row_of
from spotlessnet.auditing.before_work import taken
from spotlessnet.auditing.curves import curves_of, label_probabilities, watched_training
from spotlessnet.auditing.equivalence import EquivalenceTest
from spotlessnet.auditing.judging import judge_networks
from spotlessnet.auditing.looks import LOOKS, goes_on
from spotlessnet.auditing.networks import Networks
from spotlessnet.auditing.other_recipe import unlike_recipe
from spotlessnet.auditing.own_training import known_at_the_start
from spotlessnet.auditing.provenance import doubts, not_made_again, with_copies_counted
from spotlessnet.auditing.seeds import scrub_seed
from spotlessnet.auditing.shadow_attack import u_lira
from spotlessnet.auditing.summary import ORIGINAL, RETRAINED
from spotlessnet.auditing.verdict import NEVER_SAW, TUNED, Verdict
from spotlessnet.auditing.with_bank import FromBank, report_of
from spotlessnet.auditing.wording import besides, never_saw, not_as_good, not_as_retrained, sentence
from spotlessnet.core.deprecated import accepts_old_names
from spotlessnet.core.errors import SettingError
from spotlessnet.core.progress import Meter, track, working
from spotlessnet.core.scrub import Scrub, declared_by
from spotlessnet.core.split import Split, as_split
from spotlessnet.core.trained import Trained, running_norms
from spotlessnet.core.trainer import name_of
from spotlessnet.readouts.scores import IN_WORDS, kind_of
from spotlessnet.store.receipts import LIMITS, environment, without_figures
from spotlessnet.training.fit import UNCOUPLED
from spotlessnet.training.kept import KNOW_THE_ROWS
from spotlessnet.training.many import Executor
from spotlessnet.training.pairs import Trainings, train_pairs

SMALL = 200_000
"""Weights up to which networks of all seeds are trained as one program."""

NOT_SHOWN = (
    "The verdict is about the method with these settings on these rows, over several trainings; a single file is held "
    "against retrained networks, but one file shows less than several, and whether it alone was tuned to look "
    "retrained is not asked.",
    "No attack on gradients or over many requests was judged, nor one that learns the forgotten rows again, nor copies "
    "of the network in fewer bits; of hidden layers, the last one was asked by a linear probe.",
    "Copies of the rows are known by equal inputs: near ones (rounded, cropped, noisy) that stay were not looked for.",
    "Optimiser state is not touched: if it was kept, it still carries the rows. Destroy it.",
)
OTHER_FILE = (
    "So the verdict, and what could have been kept unnoticed, are of networks that the method makes; of this one it is "
    "only known that it does not stand out alone, and one network shows far less"
)
FROZEN = (
    "Some weights are frozen: they are the same in every network that was compared, so what they know of the rows "
    "cannot be seen here."
)
FEW_REFERENCES = (
    "Only {} networks were trained without the rows, beside originals from a bank: what is left in few rows is seen "
    "less often than by an audit of its own, nobody asked whether networks were tuned to look retrained, and "
    "relearning was not looked at."
)
ASKED_WHETHER_TUNED = (
    "Networks that were tuned to look retrained are known where they resemble those that the audit tuned itself, in "
    "two ways, or lie near the originals that it gave to the method: one that was tuned otherwise, from an "
    "original that the method trained itself, or far away from the one that it was given, with this in mind, can pass."
)
STOOD_STILL = "BatchNorm statistics were not moved by training, so they carry nothing of the rows."
STATISTICS = (
    "BatchNorm statistics are not touched: if training moved them, they still carry the rows.",
    "BatchNorm statistics are compared as they would be deployed: those of retrained networks are their own, those of "
    "scrubbed ones were trained or estimated anew without the rows.",
)
"""Of networks whose statistics training is not known to have moved; and of those where it moved them."""


@accepts_old_names(again="rerun_command")
def audit(
    original: Trained | nn.Module | Callable[[int], Trained],
    split: Split,
    scrub: Scrub,
    *,
    name: str,
    others: Mapping[str, Scrub] | None = None,
    seeds: int = 8,
    title: str = "A request to forget",
    rerun_command: str = "",
    shadow_attack: bool = False,
    delivered: Trained | None = None,
    executor: Executor | None = None,
    bank: Bank | None = None,
    sequential: bool = False,
    traced: bool = False,
) -> AuditReport:
    """Train originals and retrained networks over paired seeds, scrub, look at all of them, and judge.

    Every original is scrubbed with draws of its own, so the method is judged over its chance too.

    **Arguments:**

    - `original`: a network that knows its recipe or trainer and its start, or a function of the seed that gives one to
      begin with.
    - `scrub`, `name`: the method that is judged; `others` are shown beside it.
    - `seeds`: pairs of trainings; 8 unless said, 5 at least for a verdict.
    - `rerun_command`: shown at the foot of the report.
    - `shadow_attack`: also attack shadow networks that were scrubbed the same way (minutes).
    - `delivered`: the network that a user takes away: judged by itself too, and shown as a row of its own.
    - `executor`: how networks are trained, and where they are kept so that an interrupted audit goes on; in turn, and
      nowhere, unless said.
    - `bank`: originals that are kept for many requests (`sn.Bank`): a request then trains 3 networks, without its rows.
      `seeds`, `others` and `shadow_attack` say nothing beside it.
    - `sequential`: where `seeds` pairs are inconclusive, as many again are trained, and all are judged once more; and
      then twice as many again. Each of the three looks has a third of every level. A bank has its own.
    - `traced`: whoever calls made `delivered` by `scrub` of `original` just now. Otherwise, before it is said that it
      never saw the rows, it is made once more and compared to the bit.
    """
    split = with_copies_counted(as_split(split))
    scrubs = {name: scrub, **(others or {})}
    original, began = taken(original, split, scrubs, seeds=seeds, delivered=delivered, bank=bank)
    if isinstance(original, Trained) and not original.can_retrain:
        return _without_retraining(original, split, scrub, name, title, rerun_command, delivered)
    if bank is not None:
        if others or shadow_attack:
            raise SettingError(
                "With a bank, one method is audited without shadows. Leave out `others`, `shadow_attack`."
            )
        looked = FromBank(bank, original, split, scrub, delivered=delivered, executor=executor)
        return _from_bank(looked, scrub, name, title, rerun_command, executor, traced=traced)

    def pairs(first: int, count: int) -> Networks:
        together = began.size <= SMALL
        found = train_pairs(original, split, seeds=count, first=first, together=together, executor=executor)
        return Networks.of(found, split, scrubs)

    networks = pairs(0, seeds)
    attacks = [u_lira(networks.trainings.original[0], split, scrub, executor=executor)] if shadow_attack else []
    extra = [check for attack in attacks for check in checks_of_attack(attack.forgotten)]
    test = EquivalenceTest(looks=LOOKS if sequential else 1)
    judge = partial(_judged, scrub=scrub, split=split, test=test, extra=extra, delivered=delivered)
    networks, verdict = _in_looks(networks, name, pairs, judge, test.looks)
    trainings = networks.trainings
    first = trainings.original[0]
    paths, of_training = watched_training(networks, split, name, executor)
    meters = {**networks.meters(), **of_training}
    controls = networks.controls(split)
    rows = list(track(battery_rows(networks, split, controls, meters), "looking at the networks"))
    if delivered is not None:
        rows += delivered_rows(delivered, trainings, split, controls)
    with working("drawing curves"):
        curves = curves_of(networks, split, controls, scrub, name, paths)
    return AuditReport(
        title=title,
        method=name,
        rows=tuple(rows),
        verdict=_in_its_light(verdict, scrub, trainings, split, began, None if traced else delivered),
        request=request_of(split),
        settings=_settings(scrub),
        assumed=list(networks.scrubbed[name][0].gaussian.diagnostics.assumed),
        lost=list(networks.scrubbed[name][0].gaussian.diagnostics.lost),
        curves=curves,
        costs=_costs(meters, name),
        limits=(*_of_recipe(original, trainings, split), *_limits(first, split, executor, verdict), *LIMITS),
        rerun_command=rerun_command,
        made=environment_of(),
        header=header_of(began),
    )


def _in_looks(
    networks: Networks, name: str, pairs: Callable[[int, int], Networks], judge: Callable[..., Verdict], looks: int
) -> tuple[Networks, Verdict]:
    """The verdict of the last look, and all networks that it took; `pairs` makes so many more from a first seed on."""
    verdict = judge(networks.by(name), networks.trainings)
    for _ in range(1, looks):
        if not goes_on(verdict):
            break
        had = len(networks.trainings.seeds)
        networks = networks.join(pairs(2 * had, had))  # each pair and its held-out network have two seeds
        verdict = judge(networks.by(name), networks.trainings)
    return networks, verdict


def _from_bank(
    looked: FromBank,
    scrub: Scrub,
    name: str,
    title: str,
    rerun_command: str,
    executor: Executor | None,
    *,
    traced: bool,
) -> AuditReport:
    """The report of an audit whose originals a bank keeps, and what becomes of the bank."""
    split, first = looked.split, looked.original[0]
    began = looked.start if isinstance(looked.start, Trained) else looked.start(0)
    loose = None if traced else looked.delivered
    verdict = _in_its_light(looked.verdict(), scrub, looked.trainings, split, began, loose)
    bank = looked.bank.after(looked.start, split, looked.scrubbed, verdict.outcome)
    return report_of(
        looked,
        scrub,
        name,
        verdict,
        title=title,
        request=request_of(split),
        limits=(
            *_of_recipe(looked.start, looked.trainings, split),
            FEW_REFERENCES.format(len(looked.references)),
            bank,
            *_limits(first, split, executor),
            *LIMITS,
        ),
        rerun_command=rerun_command,
        made=environment_of(),
        header=header_of(first),
    )


def never_sees(scrub: Scrub, original: Trained, split: Split) -> bool:
    """Whether nothing of the forgotten rows can reach what a method gives: neither they, nor copies, nor statistics."""
    parts = declared_by(scrub)
    if not parts or not all(part.never_sees_forgotten for part in parts) or split.request.copies:
        return False
    # Without buffers of its own, retraining begins at running statistics that were gathered with the rows.
    carried = original.may_have_moved_statistics or (original.statistics_moved and original.init_buffers is None)
    return not (running_norms(original.model) and carried)


def _judged(scrubbed: Sequence[Trained], trainings: Trainings, *, scrub: Scrub, split: Split, **how: Any) -> Verdict:
    """As `judge_networks`, which is told whether the method can have seen the rows."""
    never_saw = surely_never_saw(scrub, trainings, split)
    return judge_networks(scrubbed, trainings, split, never_saw=never_saw, **how)


def surely_never_saw(scrub: Scrub, trainings: Trainings, split: Split) -> bool:
    """Whether nothing of the rows can have reached the networks, by what the method reads and began at."""
    return never_sees(scrub, trainings.original[0], split) and not doubts(scrub, trainings, split)


def _in_its_light(
    verdict: Verdict, scrub: Scrub, trainings: Trainings, split: Split, original: Trained, delivered: Trained | None
) -> Verdict:
    """The verdict, where what the method can have seen is known too; `delivered` may come from elsewhere."""
    if verdict.outcome == "forgotten":
        # The audit holds networks beside others that began there too, so it cannot see this.
        known_before = known_at_the_start(trainings.original[0], split)
        # What could have hidden was tried on the method's networks: of another one less would be noticed.
        other = "" if delivered is None else not_made_again(scrub, original, split, delivered)
        unsure = [*([known_before] if known_before else []), *([f"{other}. {OTHER_FILE}"] if other else [])]
        return replace(verdict, reason=". But ".join([verdict.reason, *unsure]))
    if verdict.outcome != "inconclusive":
        return verdict
    if not never_sees(scrub, trainings.original[0], split):
        return replace(verdict, reason=besides(verdict.reason, _damage(verdict)))
    doubt = doubts(scrub, trainings, split)
    if not doubt and delivered is not None:
        doubt = not_made_again(scrub, original, split, delivered)
    return by_construction(verdict, doubt)


def _damage(verdict: Verdict) -> list[str]:
    """Where networks are surely worse than retrained ones on test or retained rows, in sentences."""
    return [sentence(check) for check in verdict.checks if check.guards and check.state == "different"]


def by_construction(verdict: Verdict, doubt: str = "") -> Verdict:
    """The verdict on a method that never sees the forgotten rows: no proof is asked of an audit that cannot give one.

    What the audit shows still counts: a difference that is surely there, and networks that are surely worse on test
    or retained rows. That they may be worse says nothing of the rows, and is told in the reason.

    **Arguments:**

    - `doubt`: what speaks against it that rows were never seen, if anything does.
    """
    if verdict.outcome != "inconclusive":
        return verdict
    damaged = _damage(verdict)
    if damaged:
        return replace(verdict, reason=not_as_good(verdict.reason, damaged))
    shown = [sentence(check) for check in verdict.checks if check.state == "different"]
    if shown or doubt:
        return replace(verdict, reason=not_as_retrained(verdict.reason, [*shown, *([doubt] if doubt else [])]))
    return replace(verdict, outcome=NEVER_SAW, reason=never_saw(verdict.reason))


def _of_recipe(given: Trained | Callable[[int], Trained], trainings: Trainings, split: Split) -> tuple[str, ...]:
    """That the network is not what its recipe gives, first of all limits; a function of the seed gives none."""
    found = unlike_recipe(given, trainings.original, split) if isinstance(given, Trained) else ""
    return (found,) if found else ()


def _limits(
    original: Trained, split: Split, executor: Executor | None = None, verdict: Verdict | None = None
) -> tuple[str, ...]:
    """What the report cannot say of such a network, and how its trainings were coupled if not by a recipe."""
    said: tuple[str, ...] = NOT_SHOWN
    known_before = without_figures(known_at_the_start(original, split))  # limits stand in files that outlast a purge
    if known_before:
        said = (f"{known_before[0].upper()}{known_before[1:]}.", *NOT_SHOWN)
    if verdict is not None and verdict.checks.get(TUNED) is not None:
        said = (*said, ASKED_WHETHER_TUNED)
    if any(not weight.requires_grad for weight in original.model.parameters()):
        said = (*said, FROZEN)
    if running_norms(original.model):
        known = original.statistics_moved or original.may_have_moved_statistics
        said = (*said, STATISTICS[original.statistics_moved] if known else STOOD_STILL)
    if executor is not None and executor.folder is not None:
        said = (*said, KNOW_THE_ROWS)
    kind = kind_of(original, split.forget)
    if kind != "classes":
        said = (*said, f"Rows were compared by {IN_WORDS[kind]}, wherever this report speaks of margins.")
    if original.trainer is None:
        return said
    coupled = UNCOUPLED.format(name=name_of(original.trainer))
    return (*said, f"{coupled[0].upper()}{coupled[1:]}, so more chance stands between them; relearning used plain SGD.")


def _costs(meters: Mapping[str, Meter], name: str) -> list[Cost]:
    shown = [name, *(m for m in meters if m not in (name, ORIGINAL, RETRAINED)), ORIGINAL, RETRAINED]
    notes = {ORIGINAL: "one training", RETRAINED: "one retraining without the rows"}
    return [Cost(m, meters[m].seconds, meters[m].memory, notes.get(m, "")) for m in shown]


def _without_retraining(
    original: Trained,
    split: Split,
    scrub: Scrub,
    name: str,
    title: str,
    rerun_command: str,
    delivered: Trained | None,
) -> AuditReport:
    """What can be said when nobody knows how to retrain: one network before and after, and no verdict."""
    found = scrub_seed(scrub, original, split, 0)
    after = delivered or found.network
    readouts = readouts_of_one(original, split)
    networks = {ORIGINAL: original, name: after}
    rows = [
        row_of(m, readout, 0, network, split, found.meter) for m, network in networks.items() for readout in readouts
    ]
    missing = (
        "The start of training or its recipe is not known, so no network could be retrained and nothing is judged."
    )
    return AuditReport(
        title=title,
        method=name,
        rows=tuple(rows),
        request=request_of(split),
        settings=_settings(scrub),
        assumed=list(found.gaussian.diagnostics.assumed),
        lost=list(found.gaussian.diagnostics.lost),
        curves=Curves(
            confidence={m: p for m, network in networks.items() if (p := label_probabilities(network, split))}
        ),
        limits=(missing, *_limits(original, split), *LIMITS),
        rerun_command=rerun_command,
        made=environment_of(),
        header=header_of(original),
    )


def request_of(split: Split) -> dict[str, object]:
    """What was asked for, as a report shows it: counts and words, never ids."""
    asked = split.request
    found: dict[str, object] = {"asked for": asked.text, "rows to forget": len(split.forget)}
    if split.kept is not None:
        found["rows kept"] = len(split.kept)
    if asked.copies is not None:
        found["identical copies among the rows kept"] = asked.copies
    return found | {"ids missing": asked.missing, "duplicates": asked.duplicates}


def header_of(network: Trained) -> dict[str, str]:
    """The network in a line, for the top of a report."""
    return {"network": f"{type(network.model).__name__}, {network.size:,} weights"}


def _settings(scrub: Scrub) -> dict[str, str]:
    return {"settings": repr(scrub)}


def environment_of() -> dict[str, object]:
    """Versions, machine and date, for the foot of a report."""
    where = environment()
    return {
        **where["packages"],
        "python": where["python"],
        "machine": f"{where['machine']}, {where['threads']} threads",
        "date": datetime.now(UTC).date().isoformat(),
    }
