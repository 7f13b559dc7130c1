"""Bounds: how many nats about the forgotten data an attacker can still get."""

from spotlessnet.bounds.adversarial_query import Query, adversarial_query
from spotlessnet.bounds.attacker import best_accuracy, true_positives
from spotlessnet.bounds.black_box import BlackBox
from spotlessnet.bounds.from_samples import SampleKL, kl_from_samples
from spotlessnet.bounds.linearisation import Linearisation, linearisation
from spotlessnet.bounds.over_seeds import over_seeds
from spotlessnet.bounds.per_query import per_query, per_query_by_set
from spotlessnet.bounds.trade_off import TradeOff, trade_off
from spotlessnet.bounds.white_box import WhiteBox

__all__ = [
    "BlackBox",
    "Linearisation",
    "Query",
    "SampleKL",
    "TradeOff",
    "WhiteBox",
    "adversarial_query",
    "best_accuracy",
    "kl_from_samples",
    "linearisation",
    "over_seeds",
    "per_query",
    "per_query_by_set",
    "trade_off",
    "true_positives",
]
