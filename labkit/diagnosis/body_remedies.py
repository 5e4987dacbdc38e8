"""Remedies for what a loop's body does besides training."""

from __future__ import annotations

from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.remedies import ROUNDED, Fit, Remedy
from labkit.diagnosis.trainer_code import replaced


def no_nan_filter(evidence: Evidence) -> Fit | None:
    """Return how to switch off what a Trainer asks of each loss; None for another loop."""
    training = evidence.code.training if evidence.code else None
    lines = replaced(training, {"logging_nan_inf_filter": False}) if training else ""
    return Fit(words={"lines": lines}) if evidence.trainer else None


OUT_OF_THE_LOOP = Remedy(
    "out_of_the_loop",
    "Take logging, checkpoints, evaluation and .item() out of the loop, or do them rarely; where "
    "there is none, launch fewer and larger kernels.",
    "launches",
)
NO_SYNCHRONISING = Remedy(
    "no_synchronising",
    "Do not wait for the device in every step: collect losses on it, and read them rarely.",
    "launches",
    code="total += loss.detach()  # and only now and then: total.item()\n",
)
READ_RARELY = Remedy(
    "read_rarely",
    "Have the package that waits for the device in every step log or check less often: it has a "
    "setting for that, or a call of yours asks for it.",
    "launches",
)
NO_NAN_FILTER = Remedy(
    "no_nan_filter",
    "Do not have the Trainer ask in every step whether the loss is a number, which waits for the "
    "device: TrainingArguments(logging_nan_inf_filter=False).",
    "launches",
    fits=no_nan_filter,
    code="$lines",
    cost="the loss that is logged is NaN where one step's is",
)
NO_SCALER = Remedy(
    "no_scaler",
    "Use autocast to BF16, which this card has, in place of FP16: it needs no GradScaler, whose "
    "step() waits for the device.",
    "formats",
    cost="accuracy: 8 bits of each number in place of 11",
    check="losses within 16-bit rounding, and the metric",
)
NOW_AND_THEN = Remedy(
    "find_what_runs_now_and_then",
    "Look for what runs now and then: garbage collection, recompiles, checkpoints.",
    "launches",
)
IN_ANOTHER_PROCESS = Remedy(
    "in_another_process",
    "Take it out of the loop, or do it rarely or in another process: logging, checkpoints, "
    "evaluation, preparing data; with_stack=True records where it is.",
    "lines",
)
VECTORISE = Remedy(
    "vectorise",
    "Vectorise it, do it in tensor operations, or take it out of the loop. What prepares a batch "
    "belongs in the dataset or in collate_fn, where the loader's workers do it.",
    "lines",
)
COLLECT_RARELY = Remedy(
    "collect_rarely",
    "Take gc.collect() out of the loop, and torch.cuda.empty_cache() with it: Python collects by "
    "itself, and memory given back to the driver has to be asked for again in the next step.",
    "lines",
)
LOG_RARELY = Remedy(
    "log_rarely",
    "Do it in every 50th step or less, buffered and without fsync, or in a thread of its own.",
    "lines",
)
WAIT_ELSEWHERE = Remedy(
    "wait_elsewhere", "Do it in a thread of its own, or between epochs.", "lines"
)
FEED_THE_OTHER = Remedy(
    "feed_the_other",
    "Give that DataLoader workers too: num_workers=2 to begin with, and persistent_workers=True; "
    "it prepares its batches in the loop's own process.",
    "workers",
    cost="a process with its memory for each worker, and their start",
)
KEEP_THE_OTHER_LOADER = Remedy(
    "keep_the_other_loader",
    "Make that DataLoader once, outside the loop, with persistent_workers=True, and ask it for "
    "less: less work per item, or larger batches of it less often.",
    "items",
)
ALL_WEIGHTS_AT_ONCE = Remedy(
    "all_weights_at_once",
    "Use a built-in optimizer with fused=True or foreach=True, or update all weights of a group in "
    "one call with torch._foreach_*, in place of several small operators for each of them.",
    "launches",
    code="# in step(), for a group of weights: momentum, as an example\n"
    'weights = [each for each in group["params"] if each.grad is not None]\n'
    "gradients = [each.grad for each in weights]\n"
    'averages = [self.state[each]["average"] for each in weights]\n'
    'torch._foreach_lerp_(averages, gradients, 1 - group["momentum"])\n'
    'torch._foreach_add_(weights, averages, alpha=-group["lr"])\n',
    check=ROUNDED,
    price=2,
)
KEEP_LESS = Remedy(
    "keep_less",
    "Something is kept from step to step, such as a list that grows: empty it now and then, or "
    "memory runs out some time.",
    "lines",
)
WATCH_SIZES = Remedy(
    "watch_sizes",
    "Look at that line: print every 100th step's time beside the sizes of what it works on. They "
    "grow where something is collected, and may grow on purpose (longer texts, larger images).",
    "lines",
)
KEEP_NUMBERS = Remedy(
    "keep_numbers",
    "Keep numbers instead of tensors with the graphs that made them.",
    "lines",
    code="total += loss.item()  # or: losses.append(loss.detach())\n",
)
THREADS = Remedy(
    "threads_as_cores",
    "Let torch compute with as many threads as there are cores.",
    "lines",
    code="torch.set_num_threads($cores)  # or OMP_NUM_THREADS=$cores in the environment\n",
)
