"""How sure a network may be of ordinary rows that it is to have never seen: as sure as of held-out ones."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from spotlessnet.core.answers import margin
from spotlessnet.core.data import Data
from spotlessnet.core.errors import NeedError
from spotlessnet.core.trained import Trained


def match_held_out_confidence(
    trained: Trained,
    answers: Float[Tensor, "k C"],
    labels: Int[Tensor, " k"],
    ordinary: Bool[Tensor, " k"],
    held: Data,
) -> Float[Tensor, "k C"]:
    """Answers with the margins of held-out rows of the same label, in the same order of sureness."""
    known, answers = held.labels().cpu(), answers.clone()
    for c in labels[ordinary].unique():
        mine = ordinary & (labels == c)
        alike = (known == c).nonzero().squeeze(1)
        if not len(alike):
            raise NeedError(
                f"`OutOfFoldDistillation` needs held-out rows of every forgotten class, but none has class {int(c)}."
            )
        now = margin(answers[mine], labels[mine])
        unseen = margin(trained.predict(held.select(alike)).cpu(), known[alike])
        # Mid-ranks: k answers are matched to k quantiles, none of them an extreme.
        rank = (now.argsort().argsort().to(unseen) + 0.5) / len(now)
        # Raising the true logit by d raises its margin by d, and leaves the others in proportion.
        answers[mine, c] += (unseen.quantile(rank) - now).to(answers)
    return answers
