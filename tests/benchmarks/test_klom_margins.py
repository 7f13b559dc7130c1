"""Margins that are kept: what is written comes back, runs add up, and what is not alike is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.klom_margins import About, digest, joined, keep, kept
from torch.distributions import Normal, kl_divergence

from benchmarks import klom_page, klom_words
from spotlessnet.core.data import Data

SETS = ("random, small", "random, large", "coherent, small", "coherent, large")
PARTS = (*SETS, "retain", "validation")
ABOUT = About("rows", "recipe", "python benchmarks/klom.py train")


def _asked() -> dict[str, Data]:
    draw = torch.Generator().manual_seed(0)
    whole = Data.of((torch.randn(60, 1, 2, 2, generator=draw), torch.arange(60) % 3))
    return {name: whole.select(range(10 * i, 10 * i + 10)) for i, name in enumerate(PARTS)}


def _networks(first: int, count: int) -> list[dict[str, object]]:
    """Each misses the first two or the last two sets."""
    draw = torch.Generator().manual_seed(first)
    return [
        {"seed": first + i, "missed": list(SETS[:2] if i % 2 else SETS[2:]), "error": 0.1 + i / 100, "seconds": 2.5,
         "margins": {name: (torch.randn(10, generator=draw) + i % 2).half() for name in PARTS}}
        for i in range(count)
    ]  # fmt: skip


def test_what_is_kept_comes_back_and_runs_add_up(tmp_path: Path) -> None:
    first, second = tmp_path / "margins-0.npz", tmp_path / "margins-16.npz"
    keep(first, _networks(0, 4), _asked(), ABOUT)
    keep(second, _networks(16, 6), _asked(), replace(ABOUT, command="another"))
    networks, about = joined([first, second])
    assert about == ABOUT
    assert len(networks) == 10
    for found, told in zip(networks, _networks(0, 4) + _networks(16, 6), strict=True):
        assert {k: found[k] for k in ("seed", "missed", "error", "seconds")} == {
            k: told[k] for k in ("seed", "missed", "error", "seconds")
        }
        for name in PARTS:
            assert torch.equal(found["margins"][name], told["margins"][name])  # type: ignore[index]
    keep(first, _networks(0, 2), _asked(), ABOUT)  # once more, with fewer: what was there is replaced as a whole
    assert len(kept(first)[0]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["margins-0.npz", "margins-16.npz"]


def test_what_does_not_add_up_is_refused(tmp_path: Path) -> None:
    first, second = tmp_path / "margins-0.npz", tmp_path / "margins-2.npz"
    keep(first, _networks(0, 4), _asked(), ABOUT)
    for other in (replace(ABOUT, digest="others"), replace(ABOUT, recipe="another")):
        keep(second, _networks(16, 4), _asked(), other)
        with pytest.raises(ValueError, match="of different rows or recipes"):
            joined([first, second])
    keep(second, _networks(2, 4), _asked(), ABOUT)
    with pytest.raises(ValueError, match=r"Seeds \[2, 3\] are there twice"):
        joined([first, second])
    served = tmp_path / "served.pt"
    torch.save({"unlearned": [], "about": "", "digest": "others"}, served)
    with pytest.raises(ValueError, match="on the same rows"):
        klom_page.read([first, served])


def test_the_digest_sees_rows_labels_and_pictures() -> None:
    asked = _asked()
    same = digest(asked)
    assert digest(_asked()) == same
    data = asked["retain"]
    whole = data.source.fetch(torch.arange(60))
    x, y = whole[0], whole[1]
    assert isinstance(x, torch.Tensor)
    moved, renamed = x.clone(), y.clone()
    moved[43, 0, 1, 1] += 0.01
    renamed[43] = (renamed[43] + 1) % 3
    assert digest(asked | {"retain": Data.of((x, y)).select(range(40, 50))}) == same
    for pair in ((moved, y), (x, renamed)):
        assert digest(asked | {"retain": Data.of(pair).select(range(40, 50))}) != same
    alike = Data.of((torch.zeros_like(x), torch.zeros_like(y)))  # only their numbers tell these rows apart
    assert digest({"retain": alike.select([1, 2])}) != digest({"retain": alike.select([1, 3])})


def test_the_fit_is_the_divergence_of_fitted_gaussians_against_retrained_networks(tmp_path: Path) -> None:
    path, served = tmp_path / "margins-0.npz", tmp_path / "served.pt"
    networks = _networks(0, 12)
    keep(path, networks, _asked(), ABOUT)
    name = SETS[2]
    mine = [one | {"set": name, "method": "m", "share": 0.05} for one in _networks(50, 6)]
    torch.save({"unlearned": mine, "about": "served", "digest": ABOUT.digest}, served)
    rows = {row.key[1:3]: row for row in klom_page.rows_of(klom_page.read([path, served]), "t", 3)
            if row.experiment == f"t, {name}"}  # fmt: skip
    theirs = torch.stack([one["margins"][name] for one in networks if name in one["missed"]]).double()  # type: ignore[index,operator]
    ours = torch.stack([one["margins"][name] for one in mine]).double()  # type: ignore[index]
    assert len(theirs) == 6
    expected = kl_divergence(Normal(ours.mean(0), ours.std(0)), Normal(theirs.mean(0), theirs.std(0)))
    assert rows["m", "fit, P95 on forget"].value == pytest.approx(float(expected.quantile(0.95)), rel=1e-9)
    assert rows["m", "fit, mean on forget"].value == pytest.approx(float(expected.mean()), rel=1e-9)
    assert rows["m", "fit, chance alone"].value == klom_page.chance(6, 6, reading="fit, P95")
    for method, group in (("m", ours), ("retrained", theirs)):
        assert rows[method, klom_words.MARGIN].value == pytest.approx(float(group.mean()), rel=1e-9)
    assert "served" in rows["m", klom_words.AUC].note
    assert rows["original", klom_words.AUC].note == ABOUT.command
    # Networks of one kind and their own halves; those that saw the set differ by a whole unit from those that did not.
    assert rows["original", "fit, mean on forget"].value > rows["m", "fit, mean on retain"].value
