"""As many pairs of trainings as a verdict takes: up to three looks, each at twice the networks of the one before."""

from spotlessnet.auditing.verdict import Verdict

LOOKS = 3
"""Of a sequential audit, at most. What an audit knows of the share grows with the root of the pairs: a person's similar
rows, of which one network tells little, mostly need the third (`docs/cheaper_audits.md`)."""


def goes_on(verdict: Verdict) -> bool:
    """Whether twice the networks may tell what these did not.

    That networks are surely worse on other rows is damage, which no number of them mends. Stopping without a verdict
    makes no error more likely.
    """
    is_damaged = any(check.guards and check.state == "different" for check in verdict.checks)
    return verdict.outcome == "inconclusive" and not is_damaged
