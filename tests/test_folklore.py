"""The page of corrected folklore: every number on it comes from a record or a published table."""

import re

from test_house import ROOT

import labkit as lk

PAGE = ROOT / "notebooks" / "folklore.md"
H200, XEON = "NVIDIA-H200/", "Intel-Xeon-Processor/"
NAMES = re.compile(  # what has a digit and is no measurement: formats, models, cards, our links
    r"\[[^]]*\]\([^)]*\)|`[^`]*`|\b(?:A|H|V|B)\d+0\b|RTX \d+|FP32|TF32|BF16|INT4|ResNet-50"
    r"|ShuffleNetV2|ViT-B/16|Llama-2-7B|\b16 bits"
)
SAID = re.compile(r'^\*\*".*?\*\*', re.MULTILINE)  # the folklore itself
SETTINGS = (  # what was set rather than measured: batches, workers, cores, watts
    "with 8 workers |warp's 32|batches of 8, 12 and 16|12 costs|Multiples of 8, better 64|with 8, |"
    "16 cores|4 workers|and 8 fed|2 cores|2 workers|and 6 |"
    "Start at 4|8 instead of 2|224 × 224|2-core|64 images as eight times 8|"
    "at 200 W instead of 300 W|at 100 W|from 50,257 to 50,304"
)


def rate(name, over=None):
    """Return the samples/s of a recorded run, or how many times those of another."""
    throughput = lk.recorded(name).throughput
    return throughput / lk.recorded(over).throughput if over else throughput


def value(table, column, **where):
    """Return one number of a published table."""
    rows = lk.published(table)
    for name, wanted in where.items():
        rows = rows[rows[name] == wanted]
    assert len(rows) == 1, (table, where, len(rows))
    return rows[column].item()


def times(table, new, old, digits=1, **where):
    """Return by how much one column of a row exceeds another, as the page writes it."""
    return f"{value(table, new, **where) / value(table, old, **where):.{digits}f} times"


def step(name):
    """Return the tokens/s of a rung of the GPT's ladder."""
    return value("llm-ladder", "tok_per_s", step=name)


def epoch(batch, **where):
    """Return the seconds of an epoch on a V100 at its full power."""
    return value("batch-power", "epoch_s", card="V100", limit_w=250, batch=batch, **where)


def batch_ms(batch):
    """Return how long a V100 takes for a batch with AMP."""
    return value("inference", "ms", card="V100", precision="AMP", batch=batch)


def figures():
    """Return every measured number of the page in the words it stands in, recomputed."""
    bert = {"model": "bert_base_uncased", "dataset": "squad", "optimizer": "adamw"}
    shuffle = {"model": "shufflenetv2", "dataset": "cifar100", "optimizer": "adadelta"}
    pinned = rate(H200 + "pinned", H200 + "pageable")
    padded = step("vocabulary padded to 50,304") / step("torch.compile")
    limits = lk.published("power-limits").set_index("limit_w")
    slower = limits.seconds[200] / limits.seconds[300] - 1
    saved = 1 - limits.joules[200] / limits.joules[300]
    one_image = [
        value("inference", "img_per_s", card="V100", precision=each, batch=1)
        for each in ("AMP", "FP32")
    ]
    gpt_fast = [
        value("gpt-fast", "tok_per_s", gpus=1, technique=each) for each in ("BF16", "INT4 weights")
    ]
    compiled = {"card": "RTX 4090", "new": "compiled_img_per_s", "old": "eager_img_per_s"}
    last = {"card": "RTX 3090", "new": "nhwc_img_per_s", "old": "nchw_img_per_s", "digits": 2}
    amp = {"new": "amp_img_per_s", "old": "plain_img_per_s", "gpus": 1}
    eight = {"new": "all_img_per_s", "old": "one_img_per_s", "card": "A100"}
    return [
        f"computes {lk.recorded(H200 + 'workers-0').utilization:.0%} of the time",
        f"{lk.recorded(H200 + 'workers-8').utilization:.0%}, and trains",
        f"{rate(H200 + 'workers-8', H200 + 'workers-0'):.1f} times as fast",
        f"{lk.recorded(H200 + 'precision-fp32').utilization:.0%} busy in strict FP32",
        f"ran {rate(H200 + 'precision-bf16', H200 + 'precision-fp32'):.1f} times as fast",
        f"{times('mixed-precision', card='A100', **amp)} on an A100",
        f"{times('mixed-precision', card='V100 16 GB', **amp)} on a V100",
        f"on an A100: {step('bfloat16') / step('pinned memory'):.1f} times",
        "{:.0f} images/s after {:.0f}".format(*one_image),
        "{:,.0f}, {:,.0f} and {:,.0f} s".format(*(epoch(batch, **bert) for batch in (8, 12, 16))),
        f"{padded:.2f} times as fast on an",
        f"{epoch(8, **shuffle):.0f} s an epoch",
        f"{epoch(1024, **shuffle):.1f} s with 1,024",
        f"{epoch(4096, **shuffle):.1f} s with 4,096",
        f"left it {lk.recorded(H200 + 'workers-4').utilization:.0%} busy",
        f"made {rate(XEON + 'workers-2'):,.0f} samples/s",
        f"made {rate(XEON + 'workers-6'):,.0f}",
        f"gained {rate(XEON + 'stall-8', XEON + 'stall-2'):.1f} times",
        f"{pinned:.2f} times, together",
        f"{step('fused AdamW'):,} to {step('pinned memory'):,} tokens/s",
        f"ResNet-50 {times('compile', model='resnet50', **compiled)}",
        f"ViT-B/16 {times('compile', model='vit_base_patch16_224', **compiled)}",
        f"{rate(XEON + 'compile-default', XEON + 'compile-off'):.1f} times, after",
        f"take a V100 {8 * batch_ms(8) / batch_ms(64):.1f} times as long",
        f"ResNet-50 {times('channels-last', model='resnet50', **last)}",
        f"ViT-B/16 {times('channels-last', model='vit_base_patch16_224', **last)}",
        f"{times('scaling', precision='TF32', **eight)} in TF32",
        f"{times('scaling', precision='AMP', **eight)} with AMP",
        "{:.0f} tokens/s in BF16, {:.0f} with".format(*gpt_fast),
        f"{slower:.0%} slower, {saved:.0%} less energy",
        f"took {limits.seconds[100] / limits.seconds[300]:.1f} times as long",
    ]


def test_every_number_is_recomputed_and_no_other_stands_on_the_page():
    text = " ".join(SAID.sub("", PAGE.read_text(encoding="utf-8")).split())
    for figure in figures():
        assert figure in text, figure
        text = text.replace(figure, "")
    rest = NAMES.sub("", re.sub(SETTINGS, "", text))
    assert not re.findall(r".{0,40}\d.{0,40}", rest)


def test_the_page_fits_on_paper_and_its_links_resolve():
    text = PAGE.read_text(encoding="utf-8")
    assert len(text.split()) <= 700
    assert all((PAGE.parent / link).is_file() for link in re.findall(r"\]\(([^)]+)\)", text))
