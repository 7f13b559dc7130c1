"""Hugging Face folders go in through the model's own loader and come out as `from_pretrained` expects."""

import shutil
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


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A request whose weights came in the folder of a tied model, and the words of its command."""
    monkeypatch.chdir(tmp_path)
    save_pretrained(gpt2(), tmp_path / "start")
    save_pretrained(moved(gpt2()), tmp_path / "run")
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
    Path("more.csv").write_text("row\n5\n")
    words = (
        "scrub", "--model", "nets.py:build", "--init", "start", "--data", "nets.py:train", "--loss", "next-token",
        "--id-column", "row", "--epochs", "2", "--lr", "0.1", "--accept-damage",
    )  # fmt: skip
    ended = spotless(*words, "--weights", "run", "--forget", "rows.csv", "--out", "out")
    assert ended.code == 0, ended.err
    return words, ended


def test_the_command_gives_back_a_folder_where_it_was_given_one(served):
    _, ended = served
    assert "out/pretrained" in ended.out
    read = transformers.GPT2LMHeadModel.from_pretrained("out/pretrained")
    assert_same(read, sn.load_into(gpt2(), sn.read_weights("out/scrubbed.safetensors")))
    assert spotless("verify", "out").code == 0


@pytest.mark.parametrize("change", ["other bytes", "one more", "one less", "a link", "gone"])
def test_a_changed_folder_is_noticed(served, change):
    folder = Path("out/pretrained")
    config = folder / "config.json"
    if change == "other bytes":
        config.write_text(config.read_text().replace("12", "13", 1))
    elif change == "one more":
        (folder / "custom.py").write_text("print('hello')")
    elif change == "one less":
        config.unlink()
    elif change == "a link":
        config.rename("config.json")
        config.symlink_to(Path("config.json").resolve())
    else:
        shutil.rmtree(folder)
    ended = spotless("verify", "out")
    assert ended.code == 7, ended.err
    assert "pretrained" in ended.err


def test_a_folder_of_which_the_receipt_does_not_speak_was_planted(served):
    words, _ = served
    ended = spotless(*words, "--weights", "out/scrubbed.safetensors", "--forget", "more.csv", "--out", "next")
    assert "would be learnt again" in ended.err
    sn.write_weights("plain.safetensors", moved(gpt2()))
    ended = spotless(*words, "--weights", "plain.safetensors", "--forget", "rows.csv", "--out", "plain")
    assert ended.code == 0, ended.err
    assert not Path("plain/pretrained").exists()
    shutil.copytree("out/pretrained", "plain/pretrained")
    ended = spotless("verify", "plain")
    assert ended.code == 7
    assert "pretrained lies beside" in ended.err


def test_the_next_request_knows_the_folder_for_what_a_request_left(served):
    words, _ = served
    ended = spotless(*words, "--weights", "out/pretrained", "--forget", "more.csv", "--out", "next")
    assert ended.code != 0
    assert "would be learnt again" in ended.err


def test_a_run_that_was_killed_half_way_leaves_nothing_in_the_folder(served):
    words, _ = served
    again = (*words, "--weights", "run", "--forget", "rows.csv", "--out", "out", "--resume")
    assert "served before" in spotless(*again).err
    Path("out/receipt.json").unlink()
    Path("out/pretrained/model.safetensors").write_bytes(b"half")
    Path("out/pretrained/left.over").write_bytes(b"")
    ended = spotless(*again)
    assert ended.code == 0, ended.err
    assert not Path("out/pretrained/left.over").exists()
    assert spotless("verify", "out").code == 0


def test_the_command_gives_back_adapters_alone(tmp_path, monkeypatch):
    peft = pytest.importorskip("peft")
    monkeypatch.chdir(tmp_path)
    save_pretrained(lora(bert()), tmp_path / "start")
    save_pretrained(moved(lora(bert())), tmp_path / "run")
    Path("nets.py").write_text(
        "import torch, transformers\n"
        "def build():\n"
        "    torch.manual_seed(0)\n"
        "    c = transformers.BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,"
        " intermediate_size=16, num_labels=3)\n"
        "    return transformers.BertForSequenceClassification(c)\n"
        "def train():\n"
        "    x = torch.randint(3, 20, (40, 5), generator=torch.Generator().manual_seed(0))\n"
        "    return {'input_ids': x}, torch.arange(40) % 3\n"
    )
    Path("rows.csv").write_text("row\n1\n2\n")
    ended = spotless(
        "scrub", "--model", "nets.py:build", "--weights", "run", "--init", "start", "--data", "nets.py:train",
        "--forget", "rows.csv", "--id-column", "row", "--epochs", "2", "--lr", "0.1", "--accept-damage", "--out", "out",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert not Path("out/pretrained/model.safetensors").exists()
    read = peft.PeftModel.from_pretrained(bert(), "out/pretrained")
    kept = sn.read_weights("out/scrubbed.safetensors")
    adapters = {name: value for name, value in read.state_dict().items() if "lora_" in name}
    assert adapters
    assert all(torch.equal(value, kept[name]) for name, value in adapters.items())
    assert spotless("verify", "out").code == 0


def test_others_may_read_a_folder_as_far_as_the_umask_lets_them(tmp_path, capfd):
    """The fault before: weights were for their owner alone, and no server could read them."""
    save_pretrained(gpt2(), tmp_path / "saved")
    wanted = tmp_path / "plain"
    wanted.touch()
    assert {path.stat().st_mode for path in (tmp_path / "saved").iterdir()} == {wanted.stat().st_mode}
    assert "%" not in capfd.readouterr().err
