"""A causal language model that forgets documents: each is one example, and padding does not count."""

import torch
from torch import Tensor, nn

import spotlessnet as sn

TOKENS, LENGTH = 20, 10


class Decoder(nn.Module):
    """One layer of attention to what came before."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(TOKENS, 32), nn.Parameter(torch.zeros(LENGTH, 32))
        self.body = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True)
        self.head = nn.Linear(32, TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.triu(torch.full((x.shape[1], x.shape[1]), -torch.inf), diagonal=1)
        return self.head(self.body(self.embed(x) + self.place[: x.shape[1]], mask, is_causal=True))


def build() -> nn.Module:
    """The network where its training began."""
    torch.manual_seed(0)
    return Decoder()


def documents(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sequences that count on by one, two or three; every third is shorter and padded."""
    draw = torch.Generator().manual_seed(seed)
    first, step = torch.randint(TOKENS, (count, 1), generator=draw), torch.randint(1, 4, (count, 1), generator=draw)
    x = (first + step * torch.arange(LENGTH)) % TOKENS
    y = x.clone()
    y[::3, 7:] = -100
    return x, y


def secrets(count: int, seed: int) -> Tensor:
    """Random sequences, which can only be learnt by heart."""
    return torch.randint(TOKENS, (count, LENGTH), generator=torch.Generator().manual_seed(seed))


def unseen() -> tuple[Tensor, Tensor]:
    """Documents of both kinds that nobody trained on: forgotten ones are compared with those of their own kind."""
    x, y = documents(60, 2)
    other = secrets(40, 3)
    return torch.cat([x, other]), torch.cat([y, other])


def main(seeds: int = 8) -> sn.Unlearned:
    """Train, forget, audit."""
    x, y = documents(80, 0)
    x[:8] = y[:8] = secrets(8, 1)
    recipe = sn.Recipe(optimizer="adamw", epochs=30, lr=1e-2, batch_size=16)
    model = sn.fit(sn.Trained.of(build(), "next-token", recipe=recipe), sn.Data.of((x, y))).module()  # what you have
    # glue
    return sn.unlearn(
        model, (x, y), forget=range(8), loss="next-token", init=build(), recipe=recipe, test=unseen(),
        audit=sn.Audit(seeds=seeds),
    )  # fmt: skip
    # end of glue
