"""Hugging Face folders go in through the model's own loader and come out as `from_pretrained` expects."""

from pathlib import Path

import pytest
import torch
from torch import nn

import spotlessnet as sn
from spotlessnet.core.errors import DataError, MismatchError, NeedError
from spotlessnet.store.pretrained import load_pretrained, save_pretrained
from tests.cli.workshop import spotless

transformers = pytest.importorskip("transformers")


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    shape = {"vocab_size": 12, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, bos_token_id=1, eos_token_id=2))


def vit() -> nn.Module:
    torch.manual_seed(0)
    shape = {"image_size": 8, "patch_size": 4, "num_channels": 1, "hidden_size": 8, "num_hidden_layers": 1}
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(**shape, num_attention_heads=2, intermediate_size=16, num_labels=3)
    )


def bert() -> nn.Module:
    torch.manual_seed(0)
    shape = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(**shape, intermediate_size=16, num_labels=3)
    )


def lora(base: nn.Module) -> nn.Module:
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    return peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["query", "value"], task_type="SEQ_CLS"))


def moved(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for value in model.parameters():
            if value.requires_grad:
                value.add_(torch.randn(value.shape, generator=torch.Generator().manual_seed(2)), alpha=0.1)
    return model


def assert_same(one: nn.Module, other: nn.Module) -> None:
    states = one.state_dict(), other.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.parametrize("build", [gpt2, vit, bert])
def test_tied_and_renamed_weights_come_back(build, tmp_path):
    model = moved(build())
    save_pretrained(model, tmp_path / "run")
    assert_same(load_pretrained(build(), tmp_path / "run"), model)
    again = getattr(transformers, type(model).__name__)
    assert_same(again.from_pretrained(tmp_path / "run"), model)


def test_what_does_not_fit_is_refused(tmp_path):
    save_pretrained(vit(), tmp_path / "vit")
    with pytest.raises(MismatchError, match=r"does not fit|cannot read"):
        load_pretrained(bert(), tmp_path / "vit")
    with pytest.raises(DataError, match="exists and is not empty"):
        save_pretrained(vit(), tmp_path / "vit")
    with pytest.raises(NeedError, match="needs a model of Hugging Face"):
        save_pretrained(nn.Linear(2, 2), tmp_path / "other")
    with pytest.raises(NeedError, match="Only adapters can be merged"):
        save_pretrained(vit(), tmp_path / "merged", merge=True)


def test_adapters_come_back_on_the_network_and_in_one_that_has_some(tmp_path):
    model = moved(lora(bert()))
    save_pretrained(model, tmp_path / "run")
    for base in (bert(), lora(bert())):
        found = load_pretrained(base, tmp_path / "run")
        assert_same(found, model)
        assert sn.Trained.of(found).names == sn.Trained.of(model).names, "only adapters and head are trained"
    (tmp_path / "run" / "adapter_model.safetensors").unlink()
    with pytest.raises(DataError, match="must lie in adapter_model"):
        load_pretrained(bert(), tmp_path / "run")


def test_an_unlearned_lora_is_saved_as_peft_reads_it_and_merged(tmp_path):
    peft = pytest.importorskip("peft")
    x, y = torch.randint(3, 20, (60, 5), generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
    recipe = sn.Recipe(optimizer="adamw", epochs=3, lr=0.01, batch_size=16)
    start = sn.Trained.of(lora(bert()), init=lora(bert()), recipe=recipe)
    trained = sn.fit(start, sn.Data.of(({"input_ids": x}, y)))
    done = sn.unlearn(trained, ({"input_ids": x}, y), forget=[0, 1], accept_damage=True, progress=False)
    for name, value in done.model.named_parameters():
        if not value.requires_grad:
            assert torch.equal(value, dict(trained.model.named_parameters())[name]), f"{name} is frozen"
    done.save_pretrained(tmp_path / "adapters")
    read = peft.PeftModel.from_pretrained(bert(), str(tmp_path / "adapters")).eval()
    done.save_pretrained(tmp_path / "whole", merge=True)
    whole = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "whole").eval()
    with torch.no_grad():
        want = done.model(input_ids=x).logits
        torch.testing.assert_close(read(input_ids=x).logits, want)
        torch.testing.assert_close(whole(input_ids=x).logits, want)


def test_the_command_reads_the_folder_of_a_tied_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start, model = gpt2(), moved(gpt2())
    save_pretrained(start, tmp_path / "start")
    save_pretrained(model, tmp_path / "run")
    Path("nets.py").write_text(
        "import torch, transformers\n"
        "def build():\n"
        "    c = transformers.GPT2Config(vocab_size=12, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=1,"
        " eos_token_id=2)\n"
        "    return transformers.GPT2LMHeadModel(c)\n"
        "def train():\n"
        "    x = torch.randint(12, (40, 6), generator=torch.Generator().manual_seed(0))\n"
        "    return {'input_ids': x}, x\n"
    )
    Path("rows.csv").write_text("row\n1\n2\n")
    ended = spotless(
        "scrub", "--model", "nets.py:build", "--weights", "run", "--init", "start", "--data", "nets.py:train", "--loss",
        "next-token", "--forget", "rows.csv", "--id-column", "row", "--epochs", "2", "--lr", "0.1", "--accept-damage",
        "--out", "out",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    scrubbed = sn.load_into(gpt2(), sn.read_weights("out/scrubbed.safetensors"))
    state = scrubbed.state_dict()
    assert torch.equal(state["lm_head.weight"], state["transformer.wte.weight"])
