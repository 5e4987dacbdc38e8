"""Hugging Face's Trainer as a Run: `Trainer(..., callbacks=[hf.Recorder()])`.

Needs the extra `labkit[hf]`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from labkit.bench import machine, peaks
from labkit.bench.user_loop import padding_of
from labkit.callbacks import StepRecorder
from labkit.process.events import now_ns
from labkit.results.result import Result, Table
from labkit.watching.recorder import LOOK_EVERY

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle
    from transformers import TrainerControl, TrainerState, TrainingArguments

try:
    import accelerate  # noqa: F401 -- the Trainer needs it, and says so late
    import torch
    from transformers import StoppingCriteria, StoppingCriteriaList, TrainerCallback
except ImportError as error:
    raise ImportError(
        f"labkit.hf needs transformers and accelerate ({error}): pip install 'labkit[hf]'"
    ) from None


class Recorder(StepRecorder, TrainerCallback):
    """Records what a Trainer does as a Run: `.run`, while it trains and afterwards.

    A step is one optimizer step, with all the batches that it accumulates, and with the logging,
    evaluating and saving behind it; what lies between epochs is left out. Losses are those that
    the Trainer logs: set `logging_steps=1`. Give each Trainer a Recorder of its own.
    """

    def __init__(self):
        super().__init__()
        self._hook: RemovableHandle | None = None
        self._batch = 0  # samples of a step
        self._samples = math.inf  # of a pass, where the dataset can tell
        self._left = math.inf  # of this pass
        self._calls = itertools.count()  # of the model, on batches of tokens
        self._tokens = np.zeros(2)  # of this step: all, and those that are no padding
        self._share = 0.0  # of the tokens that are padding, at the last look

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        train_dataloader: Any = None,
        model: torch.nn.Module | None = None,
        **_more: object,
    ) -> None:
        """Begin a record, before the first batch is asked for."""
        if not state.is_world_process_zero:
            return
        self._batch = args.train_batch_size * args.gradient_accumulation_steps
        dataset = getattr(train_dataloader, "dataset", None)
        self._samples = len(dataset) if isinstance(dataset, Sized) else math.inf
        self.begin(train_dataloader, model)
        if model is not None:
            self._calls = itertools.count()
            self._tokens = np.zeros(2)
            self._share = 0.0
            self._hook = model.register_forward_pre_hook(self._look, with_kwargs=True)

    def _look(self, model: torch.nn.Module, _args: object, inputs: dict[str, Any]) -> None:
        """Count a training batch's tokens; where a device is waited for, the padding of some."""
        ids = inputs.get("input_ids")
        mask = inputs.get("attention_mask")
        if ids is None or not model.training:
            return
        if mask is None:  # as of sequences packed in one row: every token is taken as real
            self._share = 0.0
        elif mask.is_cpu or next(self._calls) % LOOK_EVERY == 0:
            self._share = padding_of({"attention_mask": mask.cpu()}) or 0.0
        self._tokens += ids.numel(), ids.numel() * (1 - self._share)

    def on_epoch_begin(self, *_args: object, **_more: object) -> None:
        """Begin a pass over the data."""
        self._left = self._samples
        self.epoch()

    def on_step_begin(self, *_args: object, **_more: object) -> None:
        """The batches of a step are here."""
        self.ready()

    def on_step_end(self, *_args: object, **_more: object) -> None:
        """A step has been issued; keep it until it is known whether its loss is logged."""
        if self._recording is not None:
            count = int(min(self._batch, self._left))
            self._left -= count
            if self._tokens.any():
                self._recording.tokens[self._recording.next] = [round(n) for n in self._tokens]
            self._tokens = np.zeros(2)
            self.issued(count)

    def on_log(self, *_args: object, logs: dict[str, float] | None = None, **_more: object) -> None:
        """Keep the loss of the step that is over; the loader is asked only when this is done."""
        self.over(loss=(logs or {}).get("loss"))

    on_evaluate = on_save = on_log

    def on_train_end(self, *_args: object, **_more: object) -> None:
        """End the record."""
        self.close("exhausted")

    def close(self, how: str = "left early", error: BaseException | None = None) -> None:
        """End the record; only needed after a training that an exception ended: `error`."""
        if self._hook is not None:
            self._hook.remove()
        super().close(how, error)


@dataclass(frozen=True, repr=False)
class Generation(Result):
    """What `generate()` took: the prompt, then a decode step for each token; ms."""

    batch: int
    prefill_ms: float  # to the first token
    token_ms: float  # median from a token of each sequence to the next
    p99_ms: float | None  # None of fewer than 100
    tokens_per_s: float  # of all sequences, behind the first
    weights_bytes: int  # that a decode step reads, whatever the batch
    law_ms: float | None  # weights over the bandwidth measured here; None where none was

    def table(self) -> Table:
        """Return the numbers, a row each; above them, the law."""
        rows = []
        for name, value in vars(self).items():
            rows.append((name, None if value is None else f"{value:,.4g}"))
        title = f"{self.tokens_per_s:,.0f} tokens/s"
        if self.law_ms:
            title += f": a step takes {self.token_ms / self.law_ms:.2f}x as long as reading weights"
        return Table(rows, title=title)


class _Stamps(StoppingCriteria):
    """Notes when each token is there: the device is waited for, as to show a token takes."""

    def __init__(self, device: torch.device):
        self.device = device
        self.stamps_ns = [now_ns()]

    def __call__(
        self,
        input_ids: torch.LongTensor,
        scores: tuple[torch.Tensor] | None,
        **_kwargs: object,
    ) -> torch.BoolTensor:
        machine.finish(self.device)
        self.stamps_ns.append(now_ns())
        done = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
        return cast(torch.BoolTensor, done)


def generation(model: Any, input_ids: torch.Tensor, new_tokens: int = 64) -> Generation:
    """Time `model.generate` on a prompt (B, T), greedily, for `new_tokens` (3 or more) each.

    The law: a token takes at least as long as reading the weights once, at the bandwidth that
    `lk.peaks()` measured on this device with as many threads.
    """
    device = input_ids.device
    stamps = _Stamps(device)
    for tokens in (3, new_tokens):  # the first warms up
        stamps = _Stamps(device)
        model.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            stopping_criteria=StoppingCriteriaList([stamps]),
        )
    first_ms, *steps_ms = np.diff(stamps.stamps_ns) / 1e6
    weights = sum(parameter.nbytes for parameter in model.parameters())
    bandwidth = (peaks.kept(device) or {}).get(peaks.BANDWIDTH)
    return Generation(
        batch=len(input_ids),
        prefill_ms=float(first_ms),
        token_ms=float(np.median(steps_ms)),
        p99_ms=float(np.percentile(steps_ms, 99)) if len(steps_ms) >= 100 else None,
        tokens_per_s=float(len(input_ids) * len(steps_ms) / sum(steps_ms) * 1e3),
        weights_bytes=weights,
        law_ms=weights / bandwidth * 1e3 if bandwidth else None,
    )
