"""Challenges about number formats and accumulated gradients: notebooks 05 and 06."""

from __future__ import annotations

from labkit.course.task import CodeTask, counted, exactly

SAME = exactly("largest error, as a share", counted("error"), at_most=1e-6)

TASKS = (
    CodeTask(
        key="05-small-gradients",
        title="gradients that FP16 cannot hold",
        text=(
            "loss_of(weights) makes a loss in FP16 from FP16 weights, but the gradients, about "
            "1e-8, become zero on their way. Write a function of (loss_of, weights) that returns "
            "the gradient as an FP32 tensor, to 2 %. The loss stays in FP16."
        ),
        goals=(exactly("largest error, as a share", counted("error"), at_most=0.02),),
        hints=(
            "Gradients are proportional to the loss: what if it were 10,000 times as large?",
            "loss_of(weights).float() * scale; and where does the division fit 1e-8?",
        ),
        exercise="small_gradients",
        start="small_gradients:plain",
        solution="small_gradients:scaled",
        wrong={
            "no scale": "small_gradients:plain",
            "divided in FP16": "small_gradients:unscaled_in_fp16",
            "scaled too far": "small_gradients:scaled_too_far",
            "cheat: a loss in FP32": "small_gradients:in_fp32",
        },
    ),
    CodeTask(
        key="05-skip",
        title="a step that is skipped",
        text=(
            "Write a function of (weights, scale, lr). The .grad of every weight is the gradient "
            "times scale. If any number in any of them is infinite or NaN, leave every weight as "
            "it is and return scale / 2. Otherwise subtract lr times the gradient from each "
            "weight, in place, and return scale."
        ),
        goals=(SAME,),
        hints=("Look at all of the gradients before the first weight is touched.",),
        exercise="skip_step",
        solution="skip_step:careful",
        wrong={
            "mends instead of skipping": "skip_step:mended",
            "half an update": "skip_step:one_by_one",
            "cheat: never updates": "skip_step:never",
        },
    ),
    CodeTask(
        key="05-softmax",
        title="why autocast leaves softmax in FP32",
        text=(
            "Write a function of (scores), FP16 of shape (rows, n), that returns the softmax over "
            "the last dimension to 1 % of each row's largest value, made of exp and sum. Some "
            "scores are above 1000, some rows have a hundred thousand equal ones."
        ),
        goals=(exactly("largest error, as a share", counted("error"), at_most=0.01),),
        hints=(
            "Softmax stays the same when the row's largest score is taken off first.",
            "The largest FP16 number is 65504: what is a sum of 100,000 ones?",
        ),
        exercise="softmax",
        start="softmax:as_written",
        solution="softmax:in_fp32",
        wrong={
            "as written": "softmax:as_written",
            "its sums in FP16": "softmax:sums_in_fp16",
            "cheat: the largest only": "softmax:largest_only",
        },
    ),
    CodeTask(
        key="06-uneven",
        title="the last micro-batch is smaller",
        text=(
            "Write a function of (model, batches) that leaves in the parameters' .grad what the "
            "mean cross entropy over all samples at once would: batches is a list of (x, y), of 8, "
            "8, 8, 5 and 1 samples. No more than 8 go through the model together."
        ),
        goals=(SAME, exactly("largest batch in the model", counted("largest"), at_most=8)),
        hints=(
            "A micro-batch's mean loss already weighs its samples by 1 / their number.",
            "Every sample has to weigh 1/30: reduction='sum'.",
        ),
        exercise="uneven",
        start="uneven:by_micro_batch",
        solution="uneven:weighted",
        wrong={
            "mean of means": "uneven:by_micro_batch",
            "not divided": "uneven:not_divided",
            "cheat: one large batch": "uneven:joined",
        },
    ),
    CodeTask(
        key="06-tokens",
        title="cure the token mean",
        text=(
            "Write a function of (model, batches) that leaves the gradient of the mean cross "
            "entropy over every token of all batches: batches is a list of (tokens, targets), each "
            "(4, length), of different lengths; targets of -100 are padding and do not count. No "
            "padding to equal lengths, no more than 4 sentences together."
        ),
        goals=(SAME, exactly("largest batch in the model", counted("largest"), at_most=4)),
        hints=(
            "Sum the loss over tokens; divide by the number of all tokens of the update.",
            "That number has to be known before the first backward pass.",
        ),
        exercise="token_mean",
        start="token_mean:mean_of_means",
        solution="token_mean:by_token",
        wrong={
            "mean of means": "token_mean:mean_of_means",
            "padding counts": "token_mean:padding_too",
            "cheat: one large batch": "token_mean:joined",
        },
    ),
    CodeTask(
        key="06-norm",
        title="a norm that does not mind",
        text=(
            "Write a function of (channels) that returns a torch.nn.Module which normalises images "
            "(B, channels, h, w) to mean 0 and standard deviation 1, and with which four "
            "micro-batches of 4 give the gradient of one batch of 16."
        ),
        goals=(
            SAME,
            exactly("mean and std off by", counted("off"), at_most=0.05),
        ),
        hints=(
            "Batch norm takes its statistics from the other samples of the micro-batch.",
            "Which norms take them from within each sample?",
        ),
        exercise="norm",
        start="norm:batch",
        solution="norm:group",
        wrong={
            "batch norm": "norm:batch",
            "batch norm without averages": "norm:batch_without_memory",
            "cheat: no norm": "norm:nothing",
        },
    ),
)
