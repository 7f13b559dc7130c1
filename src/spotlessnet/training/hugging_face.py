"""The `Trainer` of Hugging Face transformers as a trainer of this package (extra `trainers`)."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from spotlessnet.core.errors import NeedError, SettingError
from spotlessnet.core.trainer import Examples, Recorder, check_from_the_start


@dataclass(frozen=True, eq=False)
class HuggingFaceTrainer:
    """Trains as a script with `transformers.Trainer` does: `Trained.of(..., trainer=HuggingFaceTrainer(arguments))`.

    Rows must be dictionaries of named inputs with `labels`, as a model of transformers takes them. Seed and epochs are
    set for each call, no checkpoints stay (they are written for `load_best_model_at_end` alone, to a temporary folder),
    and no line of its log is printed for each of many trainings; everything else is as the arguments say.

    **Arguments:**

    - `arguments`: the `TrainingArguments` of the training.
    - `options`: what else the training gave to its `Trainer`, such as `{"data_collator": collate}`.
    """

    arguments: Any
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not hasattr(self.arguments, "num_train_epochs"):
            raise SettingError(
                f"`HuggingFaceTrainer` needs `transformers.TrainingArguments`, but got {type(self.arguments).__name__}."
            )
        taken = {"model", "model_init", "args", "train_dataset"} & self.options.keys()
        if taken:
            raise SettingError(f"`options` must not hold {sorted(taken)[0]!r}, which is given anew for each training.")
        if any(part is not None for part in self.options.get("optimizers") or ()):
            raise SettingError(
                "`options` must not hold 'optimizers': they move the weights of the one network that they were made "
                "for, so that no other would train. Give `optim` in the arguments, or `optimizer_cls_and_kwargs`."
            )

    @property
    def epochs(self) -> int | None:
        """The usual epochs; `None` where the arguments count steps instead."""
        whole = float(self.arguments.num_train_epochs).is_integer() and self.arguments.max_steps <= 0
        return int(self.arguments.num_train_epochs) if whole else None

    @property
    def reads_some_rows(self) -> bool:
        """Whether the arguments say that a training sees but some of the rows: so many steps, or a part of an epoch."""
        return self.arguments.max_steps > 0 or self.arguments.num_train_epochs < 1

    def __call__(self, model: nn.Module, examples: Examples, seed: int, epochs: int | None = None) -> nn.Module:
        """Train the model in place and give it back."""
        try:
            import_module("accelerate")  # transformers asks for it late, and in words of its own
            from transformers import PrinterCallback, Trainer
        except ImportError as error:
            raise NeedError(
                f"`HuggingFaceTrainer` needs transformers and accelerate ({error}). Install `spotlessnet[trainers]`, "
                "or `pip install accelerate`."
            ) from error
        arguments = copy.copy(self.arguments)
        arguments.seed, arguments.data_seed = seed, seed
        arguments.disable_tqdm = True  # a bar for each of many trainings, beside that of the whole
        if epochs is not None:
            arguments.num_train_epochs = epochs
        # Callbacks count, and one training must not go on where another stopped.
        options = {**self.options, "callbacks": copy.deepcopy(self.options.get("callbacks"))}
        with TemporaryDirectory() as place:
            if arguments.load_best_model_at_end:  # the best of its checkpoints is what such a training gives
                arguments.output_dir, arguments.save_total_limit, arguments.save_only_model = place, 1, True
            else:
                arguments.save_strategy = "no"  # a checkpoint of every network would fill the disk, and know the rows
            trainer = Trainer(model=model, args=arguments, train_dataset=examples, **options)
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        return model


def recording_callback(recorder: Recorder, seed: int) -> Any:
    """A `TrainerCallback` that tells a recorder when training begins and ends; see `spotlessnet.record`.

    **Arguments:**

    - `seed`: what the recorder was told; the arguments of the training must have the same.
    """
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise NeedError(f"This callback needs transformers ({error}). Install `spotlessnet[trainers]`.") from error

    class RecordingCallback(TrainerCallback):
        """Writes the record of a training when that has ended."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            seeds = {args.seed, args.seed if args.data_seed is None else args.data_seed}
            if seeds != {seed}:
                raise SettingError(
                    f"The recorded seed must be that of `TrainingArguments`, but is {seed} where those have "
                    f"{' and '.join(map(str, sorted(seeds)))}. Give `seed=arguments.seed`."
                )
            check_from_the_start(state.global_step)
            recorder.begin()

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            recorder.end()

    return RecordingCallback()
