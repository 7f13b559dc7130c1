"""An audit from a bank: the originals are there, a few networks are trained without the rows, and one report tells."""

from collections.abc import Iterator, Mapping, Sequence

from spotlessnet.auditing.audit_report import AuditReport, Cost, Curves
from spotlessnet.auditing.bank import Bank, Start
from spotlessnet.auditing.bank_test import NEEDS_CONTROLS, BankTest
from spotlessnet.auditing.battery import DELIVERED, readouts_of_one, row_of
from spotlessnet.auditing.curves import label_probabilities
from spotlessnet.auditing.evidence import Evidence
from spotlessnet.auditing.rows import Row
from spotlessnet.auditing.seeds import Scrubbed, scrub_every_seed
from spotlessnet.auditing.summary import ORIGINAL, RETRAINED
from spotlessnet.auditing.verdict import Verdict
from spotlessnet.core.data import Data
from spotlessnet.core.errors import NeedError
from spotlessnet.core.progress import Meter
from spotlessnet.core.readout import Readout
from spotlessnet.core.scrub import Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.lira import LiRA
from spotlessnet.readouts.matched_controls import matched_controls
from spotlessnet.training.many import Executor
from spotlessnet.training.pairs import Trainings


class FromBank:
    """The networks of one audit from a bank, and what is read from them."""

    def __init__(
        self,
        bank: Bank,
        start: Start,
        split: Split,
        scrub: Scrub,
        *,
        delivered: Trained | None = None,
        executor: Executor | None = None,
    ) -> None:
        if split.test is None:
            raise NeedError(NEEDS_CONTROLS)
        self.bank, self.start, self.split, self.delivered = bank, start, split, delivered
        self.original = bank.originals(start, split, executor)
        self.executor = executor
        self.training = Meter()
        self.references: list[Trained] = []
        self.found: list[Scrubbed] = list(
            scrub_every_seed(scrub, self.original, split, range(bank.networks), f"scrubbing {bank.networks} networks")
        )

    @property
    def scrubbed(self) -> list[Trained]:
        """The bank's networks after the method, one for each seed."""
        return [one.network for one in self.found]

    @property
    def trainings(self) -> Trainings:
        """As an audit without a bank has them."""
        return Trainings(self.original, self.references, [], tuple(range(self.bank.networks)))

    def verdict(self) -> Verdict:
        """Train references until there is a verdict, or no more are allowed."""
        # One recipe for all: a file that does not know its own would else be asked differently from its references.
        recipe = self.original[0].recipe
        original, candidate = (Evidence.of(group, self.split, recipe) for group in (self.original, self.scrubbed))
        delivered = None if self.delivered is None else Evidence.of([self.delivered], self.split, recipe)
        test = BankTest(looks=len(self.bank.looks))
        for count in self.bank.looks:
            had = len(self.references)
            with Meter(self.original[0].device) as meter:
                self.references += self.bank.without_rows(self.start, self.split, count - had, self.executor, after=had)
            self.training.seconds += meter.seconds
            references = Evidence.of(self.references, self.split, recipe)
            found = test.judge(original, candidate, references, delivered=delivered)
            if found.outcome != "inconclusive":
                break
        return found

    def rows(self, name: str) -> Iterator[Row]:
        """Errors, losses, margins and an attack, of every network."""
        controls = matched_controls(self.references, self.split)
        meter = min((one.meter for one in self.found), key=lambda m: m.seconds)
        none = Meter()
        groups: dict[str, tuple[Sequence[Trained], Meter]] = {
            ORIGINAL: (self.original, none),
            name: (self.scrubbed, meter),
            RETRAINED: (self.references, self.training),
        }
        for method, (group, spent) in groups.items():
            for i, network in enumerate(group):
                for readout in self._readouts(network, controls):
                    yield row_of(method, readout, i, network, self.split, spent)
        if self.delivered is not None:
            for readout in self._readouts(self.delivered, controls):
                yield row_of(DELIVERED, readout, 0, self.delivered, self.split, none)

    def _readouts(self, network: Trained, controls: Data) -> list[Readout]:
        # Nobody is a reference for itself.
        others = tuple(one for one in self.references if one is not network)
        attack = [LiRA(others, controls)] if len(others) > 1 else []
        return [*readouts_of_one(network, self.split), *attack]

    def curves(self, name: str) -> Curves:
        """The probabilities of the forgotten rows' labels: what follows the weights on their way needs more runs."""
        shown: Mapping[str, Trained] = {
            ORIGINAL: self.original[0],
            name: self.delivered or self.scrubbed[0],
            RETRAINED: self.references[0],
        }
        return Curves(
            confidence={n: p for n, network in shown.items() if (p := label_probabilities(network, self.split))}
        )

    def costs(self, name: str) -> list[Cost]:
        """One scrub, and the trainings without the rows."""
        meter = min((one.meter for one in self.found), key=lambda m: m.seconds)
        many = f"{len(self.references)} retrainings without the rows"
        return [Cost(name, meter.seconds, meter.memory), Cost(RETRAINED, self.training.seconds, note=many)]


def report_of(looked: FromBank, scrub: Scrub, name: str, verdict: Verdict, **told: object) -> AuditReport:
    """The report; `told` is what every report of an audit has."""
    diagnostics = looked.found[0].gaussian.diagnostics
    return AuditReport(
        method=name,
        rows=tuple(looked.rows(name)),
        verdict=verdict,
        settings={"settings": repr(scrub)},
        assumed=list(diagnostics.assumed),
        lost=list(diagnostics.lost),
        curves=looked.curves(name),
        costs=looked.costs(name),
        **told,  # type: ignore[arg-type]  # title, request, limits, rerun_command, made, header
    )
