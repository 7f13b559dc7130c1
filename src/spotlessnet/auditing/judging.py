"""Networks that were trained and scrubbed already are looked at and judged."""

from collections.abc import Sequence

from spotlessnet.auditing.equivalence import EquivalenceTest
from spotlessnet.auditing.evidence import Evidence
from spotlessnet.auditing.tuned import Tuned, tuned_networks
from spotlessnet.auditing.verdict import Check, Verdict
from spotlessnet.core.progress import working
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.training.pairs import Trainings


def judge_networks(
    scrubbed: Sequence[Trained],
    trainings: Trainings,
    split: Split,
    *,
    test: EquivalenceTest | None = None,
    extra: Sequence[Check] = (),
    delivered: Trained | None = None,
    never_saw: bool = False,
) -> Verdict:
    """Judge networks that were scrubbed already, one for each pair of trainings.

    **Arguments:**

    - `delivered`: the network that is taken away, judged by itself beside all retrained ones.
    - `never_saw`: it is known, by more than what networks answer, that nothing of the rows can have reached them: then
      none of them was tuned to look so, and nobody asks.
    """
    test = test or EquivalenceTest()
    groups = (trainings.original, scrubbed, trainings.retrained, trainings.held_out)
    recipe = trainings.retrained[0].recipe
    original, candidate, *references = (Evidence.of(group, split, recipe) for group in groups)
    if delivered is not None:
        file = Evidence.of([delivered], split, recipe)
        one = test.one_look()
        extra = [*extra, one.judge_file(original, file, references), *one.damage_of_file(file, references)]

    def planted() -> list[Tuned]:
        with working("tuning originals to look retrained"):
            made = tuned_networks(trainings.original, trainings.retrained, split)
            return [found for some in made if (found := Tuned.of(some, split)) is not None]

    can_ask = not never_saw and split.kept is not None
    return test(original, candidate, *references, extra=extra, planted=planted if can_ask else None)
