"""Damage that leaves a file sound: tensors and arrays of another shape, type, name or value than belongs there."""

import io
import json
import random
import struct
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save

from tests.hostile.attacks import torch_saved

NUMBERS = ("nan", "inf", "-1", "0", "1e308", "1e-320", "-1e30", "3", "60", "9" * 30, "9" * 400, "", "x", "1_0", "٣")
TYPES = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
KINDS = ("f2", "f8", ">f4", "g", "c8", "i1", "u8", ">i8", "?", "S3", "U2", "M8[s]", "V4", "O")


def _tensor(value: torch.Tensor, draw: random.Random) -> torch.Tensor:
    """One tensor changed in its type, shape or numbers."""
    action = draw.randrange(8)
    if action == 0:
        return value.to(draw.choice(TYPES))
    if action == 1:
        return value.reshape(-1)
    if action == 2:
        return value[None]
    if action == 3:
        return value.reshape(-1)[: draw.randrange(value.numel() + 1)]
    if action == 4:
        return torch.cat([value.reshape(-1), value.reshape(-1)[:1]])
    if action == 5:
        return value.transpose(0, -1).contiguous() if value.ndim > 1 else value.sum()
    changed = value.clone().reshape(-1)
    if changed.numel():
        extreme = (
            (float("nan"), float("inf"), 3e38, -3e38, 0.0, 1e-40) if value.is_floating_point() else (-1, 0, 127, 1)
        )
        some = slice(None) if action == 6 else slice(draw.randrange(changed.numel()), None)
        changed[some] = draw.choice(extreme) if value.dtype != torch.bool else False
    return changed.reshape(value.shape)


def _state(state: dict[str, torch.Tensor], draw: random.Random) -> dict[str, torch.Tensor]:
    """Named tensors with one changed, renamed, left out or given twice."""
    name, action = draw.choice(list(state)), draw.random()
    if action < 0.7:
        state[name] = _tensor(state[name], draw)
    elif action < 0.8:
        state[draw.choice(("model." + name, name.upper(), "", "\x1b[0m", "a" * 300))] = state.pop(name)
    elif action < 0.9:
        del state[name]
    else:
        other = draw.choice(list(state))
        state[name], state[other] = state[other].clone(), state[name].clone()
    return state


def retensored(content: bytes, draw: random.Random) -> bytes:
    """A sound safetensors file with something else in it."""
    (length,) = struct.unpack("<Q", content[:8])
    text = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    if text and draw.random() < 0.4:
        text[draw.choice(list(text))] = draw.choice(NUMBERS)
        return save(load(content), text)
    state = {name: value.contiguous().clone() for name, value in _state(load(content), draw).items()}
    return save(state, text)


def resaved(content: bytes, draw: random.Random) -> bytes:
    """A sound `.pt` file with something else in it."""
    found: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True)
    found["state_dict"] = _state(dict(found["state_dict"]), draw)
    return torch_saved(found)


def rearrayed(content: bytes, draw: random.Random) -> bytes:
    """A sound `.npz` archive with something else in it."""
    with np.load(io.BytesIO(content)) as archive:
        arrays: dict[str, Any] = dict(archive)
    name = draw.choice(list(arrays))
    value, action = arrays[name], draw.randrange(6)
    try:
        if action == 0:
            value = value.astype(draw.choice(KINDS))
        elif action == 1:
            value = value.reshape(-1)
        elif action == 2:
            value = value[None]
        elif action == 3:
            value = value[: draw.randrange(len(value) + 1)]
        elif action == 4:
            value = np.asfortranarray(np.repeat(value, 2, axis=-1))
        else:
            value = value.copy()
            value.reshape(-1)[draw.randrange(value.size)] = draw.choice((2**62, -1, 3, 10**9, 2**20, 7))
    except (ValueError, TypeError, OverflowError):
        value = np.zeros((0, 3))
    arrays[name] = value
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()
