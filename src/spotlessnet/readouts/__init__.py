"""Readouts: what can be seen of forgotten rows in a network, and attacks that look for them."""

from spotlessnet.core.readout import Readout
from spotlessnet.readouts.activation_distance import ActivationDistance, along_path
from spotlessnet.readouts.attack import Attack
from spotlessnet.readouts.challenge import Challenge, challenge
from spotlessnet.readouts.curve import Curve, loss_along_line
from spotlessnet.readouts.entropy import Confidence, Entropy, Histogram, confidences, entropies, histogram
from spotlessnet.readouts.entropy_attack import EntropyAttack
from spotlessnet.readouts.error import Error
from spotlessnet.readouts.klom import klom, klom_floor
from spotlessnet.readouts.lira import LiRA, lira_scores
from spotlessnet.readouts.margin import Margin, margin, margins, margins_of
from spotlessnet.readouts.margin_kl import AgainstNull, against_null, margin_kl, margin_kl_floor
from spotlessnet.readouts.matched_controls import matched_controls
from spotlessnet.readouts.mean_loss import MeanLoss
from spotlessnet.readouts.relearn_time import RelearnTime, relearn_anchors
from spotlessnet.readouts.rmia import RMIA

READOUTS: tuple[type[Readout], ...] = (
    Error,
    MeanLoss,
    Margin,
    Confidence,
    Entropy,
    RelearnTime,
    EntropyAttack,
    ActivationDistance,
    LiRA,
    RMIA,
)
"""Every readout of one network."""

__all__ = [
    "READOUTS",
    "RMIA",
    "ActivationDistance",
    "AgainstNull",
    "Attack",
    "Challenge",
    "Confidence",
    "Curve",
    "Entropy",
    "EntropyAttack",
    "Error",
    "Histogram",
    "LiRA",
    "Margin",
    "MeanLoss",
    "RelearnTime",
    "against_null",
    "along_path",
    "challenge",
    "confidences",
    "entropies",
    "histogram",
    "klom",
    "klom_floor",
    "lira_scores",
    "loss_along_line",
    "margin",
    "margin_kl",
    "margin_kl_floor",
    "margins",
    "margins_of",
    "matched_controls",
    "relearn_anchors",
]
