"""Remedies for what a loop's body does besides training."""

from __future__ import annotations

from labkit.diagnosis.remedies import ROUNDED, Remedy

OUT_OF_THE_LOOP = Remedy(
    "out_of_the_loop",
    "Take logging, checkpoints, evaluation and .item() out of the loop, or do them rarely; where "
    "there is none, launch fewer and larger kernels.",
    "launches",
)
NO_SYNCHRONISING = Remedy(
    "no_synchronising",
    "Do not wait for the device in every step: collect losses on it, and read them rarely. A "
    "package has a setting for that: TrainingArguments(logging_nan_inf_filter=False) of Hugging "
    "Face's Trainer. A GradScaler waits as well: autocast to BF16 needs none.",
    "launches",
    code="total += loss.detach()  # and only now and then: total.item()\n",
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
ALL_AT_ONCE = Remedy(
    "all_at_once",
    "Put the whole tensor through in one call: batched or reduced operators (over classes: "
    "one_hot, bincount), torch.vmap, nn.LSTM or nn.GRU in place of a cell for each time step. "
    "Where each turn needs the one before it: torch.compile.",
    "launches",
    check=ROUNDED,
    price=2,
)
CHEAPER_LINE = Remedy(
    "cheaper_line",
    "Do what this line does less often, on less data or in a cheaper way; leave it out for a few "
    "steps to see what it costs.",
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
    "Make that DataLoader once, outside the loop, with workers of its own: num_workers=2 to begin "
    "with, and persistent_workers=True. Or read it less often: a validation every few epochs.",
    "workers",
    cost="a process with its memory for each worker, and their start",
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
    "Keep numbers instead of tensors with the graphs that made them: add loss.item(), append "
    "loss.detach(); and call backward() on the loss of this step alone.",
    "lines",
)
THREADS = Remedy(
    "threads_as_cores",
    "Let torch compute with as many threads as there are cores.",
    "lines",
    code="torch.set_num_threads($cores)  # or OMP_NUM_THREADS=$cores in the environment\n",
)
