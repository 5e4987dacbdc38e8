"""Challenges about compiling and kernels: notebook 07."""

from __future__ import annotations

from labkit.course.task import CodeTask, counted, exactly

TASKS = (
    CodeTask(
        key="07-graph-break",
        title="remove the graph break",
        text="Write a function that returns the same as this one and is captured as one graph.",
        goals=(exactly("graphs", counted("graphs"), at_most=1),),
        hints=(
            "Python's `if` needs the value of a tensor, so the graph ends there.",
            "torch.where chooses between two tensors without leaving the graph.",
        ),
        exercise="graph_break",
        start="graph_break:broken",
        solution="graph_break:whole",
        wrong={
            "no .item(), but an if": "graph_break:still_broken",
            "cheat: no condition": "graph_break:other_function",
        },
    ),
    CodeTask(
        key="07-bytes",
        title="halve the bytes",
        text=(
            "Write a function that returns the same as by_hand (to 1e-5), in FP32, with at most "
            "half of the memory traffic: every operation reads its inputs and writes its output, "
            "and what is changed in place is read and written. Without torch.compile, whose "
            "kernels the count does not see."
        ),
        goals=(
            exactly("bytes over by_hand's", counted("share"), at_most=0.5),
            exactly("times that x is read and written", counted("passes"), at_least=1.0),
        ),
        hints=(
            "Count the passes: each sign in the formula is one.",
            "The formula is the tanh approximation of GELU, and torch has it as one kernel.",
        ),
        exercise="bytes_moved",
        start="bytes_moved:by_hand",
        solution="bytes_moved:fused",
        wrong={
            "in place": "bytes_moved:in_place",
            "another function": "bytes_moved:other_function",
            "cheat: half the digits": "bytes_moved:in_half",
            "cheat: where nobody counts": "bytes_moved:uncounted",
        },
    ),
    CodeTask(
        key="07-buckets",
        title="fifty lengths, three graphs",
        text=(
            "Sentences x of shape (2, length) come in every length from 1 to 48, and each new "
            "length compiles the model anew. Write a function of (x) that returns x with zeros "
            "appended along the second dimension, so that there are at most three graphs and the "
            "model works on at most 1.5 times as many numbers as there are."
        ),
        goals=(
            exactly("graphs", counted("graphs"), at_most=3),
            exactly("numbers over those of x", counted("work"), at_most=1.5),
        ),
        hints=("Three graphs are three lengths: which, so that little is appended?",),
        exercise="buckets",
        start="buckets:as_it_comes",
        solution="buckets:buckets",
        wrong={
            "as it comes": "buckets:as_it_comes",
            "all to the longest": "buckets:to_the_longest",
            "cheat: cut to 24": "buckets:cut",
        },
    ),
    CodeTask(
        key="07-break-even",
        title="when a compilation has paid",
        text=(
            "Write a function of (compile_s, eager_ms, compiled_ms), seconds to compile and "
            "milliseconds a step, that returns the smallest number of steps after which the "
            "compiled run is no later than the eager one: a whole number, None if there is none. "
            "With (30, 20, 15) it is 6000."
        ),
        goals=(exactly("wrong results", counted("wrong"), at_most=0),),
        hints=("Each step saves eager_ms - compiled_ms; what if that is nothing, or less?",),
        exercise="break_even",
        solution="break_even:pays_after",
        wrong={
            "one step too early": "break_even:rounded_down",
            "pays always": "break_even:always_pays",
            "cheat: the example's number": "break_even:constant",
        },
    ),
)
