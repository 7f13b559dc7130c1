"""Protective noise: Gaussian, and out of reach of whoever knows less than the whole key."""

import copy
import dataclasses
import hashlib
import math
import os
import pickle
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from scipy import stats

from spotlessnet.core.covariance import LowRankPlusRidge
from spotlessnet.core.errors import SettingError
from spotlessnet.core.gaussian import Diagonal, Gaussian
from spotlessnet.core.noise import CHUNK, FINENESS, NoiseSource, RepeatableNoise, SecretNoise, snapped
from spotlessnet.store.receipts import NoiseSeed
from tests.core.test_covariance import NOISY, SIZE, dense, made

HERE = torch.zeros((), dtype=torch.float64)
KEY = bytes(range(32))


def drawn(value: int, count: int = 64) -> torch.Tensor:
    """What a secret of this value releases around zero, in float32 as networks are."""
    noise = NoiseSeed(value, is_secret=True, salt=b"")
    return Gaussian(torch.zeros(count), Diagonal(torch.ones(count))).draw(noise.generator())


@pytest.mark.parametrize("bits", [32, 63, 64, 128, 255])
@pytest.mark.parametrize("low", [True, False], ids=["low", "high"])
def test_two_secrets_that_agree_in_many_bits_draw_different_noise(bits, low):
    secret = 0x8123456789ABCDEF0123456789ABCDEFFEDCBA9876543210FEDCBA9876543210
    other = secret ^ (1 << bits) if low else secret ^ (1 << (255 - bits))
    one, two = drawn(secret), drawn(other)
    assert not one.isclose(two).any()
    assert abs(float(torch.corrcoef(torch.stack([drawn(secret, 4000), drawn(other, 4000)]))[0, 1])) < 0.08


def test_a_secret_has_256_bits_all_of_which_are_used():
    values = [NoiseSeed.secret().value for _ in range(200)]
    together = [0, 0]
    for value in values:
        together = [together[0] | value, together[1] | ~value & (2**256 - 1)]
    assert together == [2**256 - 1] * 2
    commitments = {NoiseSeed(1 << bit, True, b"salt").record()["commitment"] for bit in range(256)}
    assert len(commitments) == 256
    record = NoiseSeed(5, True, b"salt").record()
    assert record["commitment"] == hashlib.sha256(b"salt" + (5).to_bytes(32, "big")).hexdigest()


def test_no_torch_generator_is_touched_or_gives_the_same_numbers():
    before = torch.get_rng_state()
    secret = 12345  # small enough that torch would take it whole
    mine = drawn(secret)
    assert torch.equal(torch.get_rng_state(), before)
    for dtype in (torch.float32, torch.float64):
        theirs = torch.randn(64, generator=torch.Generator().manual_seed(secret), dtype=dtype)
        assert not mine.isclose(theirs.float()).any()
    assert not isinstance(NoiseSeed.secret().generator(), torch.Generator)
    assert isinstance(NoiseSeed.secret().generator(), NoiseSource)


def test_noise_is_gaussian_in_the_middle_and_in_the_tails():
    n = 400_000
    z = SecretNoise(KEY).unit(n, HERE)
    assert z.dtype == torch.float64
    assert stats.kstest(z.numpy(), "norm").pvalue > 1e-3
    for power, moment in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0), (6, 15.0)):
        x = z**power
        assert abs(float(x.mean()) - moment) < 4.5 * float(x.std()) / math.sqrt(n)
    for edge in (2.0, 3.0, 4.0):
        expected = n * stats.norm.sf(edge)
        for side in (z, -z):
            assert abs(float((side > edge).sum()) - expected) < 4.5 * math.sqrt(expected)


def test_numbers_are_independent_within_and_between_halves_chunks_and_streams():
    n = 100_000
    z, other = SecretNoise(KEY).unit(n, HERE), SecretNoise(KEY, stream=1).unit(n, HERE)
    pairs = [(z[:-lag], z[lag:]) for lag in (1, 2, CHUNK // 2, CHUNK)] + [(z, other)]
    for a, b in pairs:
        for f in (lambda v: v, torch.square, torch.sign):
            r = float(torch.corrcoef(torch.stack([f(a), f(b)]))[0, 1])
            assert abs(r) < 4.5 / math.sqrt(len(a))


def test_a_stream_goes_on_and_never_repeats():
    source = SecretNoise(KEY)
    one, two = source.unit(1001, HERE), source.unit(1001, HERE)
    assert not one.isclose(two).any()
    assert SecretNoise(KEY).unit(1001, HERE).equal(one)
    seed = NoiseSeed.secret()
    first, second = (Gaussian(torch.zeros(64), Diagonal(torch.ones(64))).draw(seed.generator()) for _ in range(2))
    assert not first.isclose(second).any()


@pytest.mark.parametrize("kind", NOISY)
def test_draws_have_the_declared_mean_and_covariance(kind):
    covariance, n = made(kind, 3), 2000
    mean = torch.linspace(-5, 5, SIZE, dtype=torch.float64)
    source = SecretNoise(KEY)
    draws = torch.stack([Gaussian(mean, covariance).draw(source) for _ in range(n)])
    S = dense(covariance)
    deviation = S.diagonal().clamp(min=0).sqrt()
    assert bool(((draws.mean(dim=0) - mean).abs() <= 5 * deviation / math.sqrt(n)).all())
    scale = deviation.outer(deviation) + 1e-12
    assert float(((draws.T.cov() - S) / scale).abs().max()) < 5 * math.sqrt(2 / n)


def test_the_sum_is_rounded_once_and_lies_on_a_grid_that_the_noise_alone_decides():
    deviation = torch.tensor([0.7, 3e-5, 1.0, 0.0], dtype=torch.float64)
    mean = torch.tensor([math.pi, -math.e * 1e-5, 1e-17, 0.1], dtype=torch.float64)
    w = Gaussian(mean, Diagonal(deviation.square())).draw(SecretNoise(KEY))
    step = torch.tensor([0.5, 2.0**-16, 1.0], dtype=torch.float64) * FINENESS
    assert torch.equal(w[:3] / step, (w[:3] / step).round())
    assert w[3] == mean[3]
    assert float((snapped(mean, deviation) - mean).abs().div(deviation)[:3].max()) <= FINENESS
    # In float32 the noise is not rounded before it is added.
    single = Gaussian(mean.float(), Diagonal(deviation.square().float())).draw(SecretNoise(KEY))
    noise = Diagonal(deviation.square().float()).draw(SecretNoise(KEY))
    assert single.dtype == torch.float32
    assert noise.dtype == torch.float64
    assert single.equal(snapped(mean.float().double() + noise, deviation).float())


def test_low_bits_of_the_mean_do_not_show():
    # Where the noise falls near minus the mean, a float64 sum would keep bits that only the mean can have brought in.
    n, tiny = 200_000, 1 + 2.0**-40
    sums = 2.0**-30 * tiny + SecretNoise(KEY).unit(n, HERE)
    naked = int((sums * 2.0**60 % 1 != 0).sum())
    w = snapped(sums, torch.ones(n, dtype=torch.float64))
    assert naked > 0
    assert not int((w * 2.0**24 % 1 != 0).sum())


def test_experiments_still_draw_what_torch_draws():
    generator = torch.Generator().manual_seed(3)
    theirs = torch.randn(5, generator=torch.Generator().manual_seed(3))
    assert Gaussian(torch.ones(5), Diagonal(torch.full((5,), 4.0))).draw(generator).equal(1 + 2 * theirs)
    assert not RepeatableNoise(generator).protects
    assert isinstance(RepeatableNoise(generator), NoiseSource)


def test_the_key_is_not_shown_copied_or_stored():
    source, seed = SecretNoise(KEY), NoiseSeed.secret()
    assert repr(source) == "SecretNoise(key not shown)"
    assert repr(seed) == "NoiseSeed.secret()"
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(SettingError, match="cannot be copied or stored"):
            way(source)
    with pytest.raises(SettingError, match=r"must have 32 random bytes, but got 4\. Use `NoiseSeed.secret\(\)`"):
        SecretNoise(b"1234")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_weights_on_a_gpu_get_the_same_secret_noise():
    basis, values = torch.linalg.qr(torch.randn(9, 3))[0], torch.tensor([1.0, 2.0, 3.0])
    kinds = [
        (Diagonal(torch.full((9,), 0.3)), Diagonal(torch.full((9,), 0.3).cuda())),
        (LowRankPlusRidge(basis, values, 0.1), LowRankPlusRidge(basis.cuda(), values.cuda(), 0.1)),
    ]
    for near, far in kinds:
        here = Gaussian(torch.ones(9), near).draw(SecretNoise(KEY))
        there = Gaussian(torch.ones(9, device="cuda"), far).draw(SecretNoise(KEY))
        assert there.device.type == "cuda"
        assert torch.allclose(there.cpu(), here, rtol=0, atol=1e-6)


def test_a_secret_seed_is_not_copied_stored_or_listed():
    seed = NoiseSeed.secret()
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(SettingError, match="cannot be copied or stored"):
            way(seed)
    for one in (seed, seed.generator()):
        with pytest.raises(TypeError):
            vars(one)
    with pytest.raises(TypeError):
        dataclasses.asdict(seed)  # type: ignore[call-overload]  # it is no data class, on purpose
    again = copy.deepcopy(NoiseSeed.for_experiments(7))
    assert again.record() == NoiseSeed.for_experiments(7).record()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_fork_cannot_draw_the_same_noise():
    seed = NoiseSeed.secret()
    source = seed.generator()
    assert isinstance(source, SecretNoise)

    def refused(act) -> bool:
        try:
            act()
        except SettingError as e:
            return "belongs to the process that made it" in str(e)
        return False

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads, which the child does not use
        child = os.fork()
    if child == 0:
        # Nothing of pytest may run twice.
        os._exit(0 if refused(seed.generator) and refused(lambda: source.unit(3, HERE)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(source.unit(3, HERE)) == 3


class Slow(int):
    """A position whose reader is interrupted before it can raise it, as any thread may be."""

    def to_bytes(self, *args, **kwargs):
        time.sleep(1e-4)
        return int(self).to_bytes(*args, **kwargs)

    def __add__(self, other):
        return Slow(int(self) + other)


def test_threads_never_draw_the_same_noise():
    noise = SecretNoise(KEY)
    noise._chunks = Slow(0)
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            many = list(pool.map(lambda _: [float(noise.unit(1, HERE)) for _ in range(50)], range(8)))
    finally:
        sys.setswitchinterval(usual)
    drawn_once = [one for some in many for one in some]
    assert len(set(drawn_once)) == len(drawn_once)
    alone = SecretNoise(KEY)
    assert set(drawn_once) == {float(alone.unit(1, HERE)) for _ in drawn_once}
