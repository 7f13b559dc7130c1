"""What speaks against it that a method never saw the forgotten rows, beside what networks answer."""

from dataclasses import replace

from spotlessnet.auditing.own_training import known_at_the_start, learnt_elsewhere
from spotlessnet.auditing.seeds import scrub_seed
from spotlessnet.core.data import Data, content_digests
from spotlessnet.core.scrub import Scrub, declared_by
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained, buffers_of
from spotlessnet.training.pairs import Trainings

PACKAGE = __name__.partition(".")[0]


def with_copies_counted(split: Split) -> Split:
    """The split, with the kept rows that have the very inputs of a forgotten one counted where nobody did."""
    if split.request.copies is not None or split.kept is None:
        return split
    request = replace(split.request, copies=copies_among(split.kept, split.forget))
    return replace(split, request=request)


def copies_among(kept: Data, forget: Data) -> int:
    """How many kept rows have the very inputs of a forgotten one, whatever their label.

    >>> import torch
    >>> data = Data.of((torch.tensor([[1.0], [2.0], [1.0]]), torch.tensor([0, 1, 1])))
    >>> copies_among(data.select([1, 2]), data.select([0]))
    1
    """
    gone = {x for batch in forget.batches() for x, _ in content_digests(batch)}
    return sum(x in gone for batch in kept.batches() for x, _ in content_digests(batch))


def doubts(scrub: Scrub, trainings: Trainings, split: Split) -> str:
    """Why it is not believed that a method which says so never saw the rows; nothing where it is."""
    found = (
        learnt_elsewhere(trainings.retrained, split),
        known_at_the_start(trainings.original[0], split),
        _said_by_others(scrub),
    )
    return "; and ".join(one for one in found if one)


def not_made_again(scrub: Scrub, original: Trained, split: Split, delivered: Trained) -> str:
    """Why nobody knows where a network comes from: the method makes another one; nothing where it makes this one."""
    made = scrub_seed(scrub, original, split, 0).network
    if made.weights.equal(delivered.weights) and _same_buffers(made, delivered):
        return ""
    return (
        "the delivered network is not the one that the method makes of the original: nobody saw which examples it was "
        "trained on. Give the very method, data and original that made it, or none, and let `sn.unlearn` make it"
    )


def _same_buffers(made: Trained, delivered: Trained) -> bool:
    ours, theirs = buffers_of(made.model), buffers_of(delivered.model)
    return ours.keys() == theirs.keys() and all(value.equal(theirs[name]) for name, value in ours.items())


def _said_by_others(scrub: Scrub) -> str:
    """Of methods that this package did not write: that they never read the rows is their author's word."""
    others = sorted(part.name for part in declared_by(scrub) if not part.place.startswith(f"{PACKAGE}."))
    if not others:
        return ""
    return f"only the author of {' and '.join(others)} says that it never reads the forgotten examples"
