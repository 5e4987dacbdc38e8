"""The pages of notebooks/symptoms: each explains the causes that a reader cannot tell apart."""

from __future__ import annotations

FOLDER = "symptoms"  # in the folder of the notebooks
PAGES = {  # the name of a page: the causes that it explains
    "too-few-workers": (
        "waiting_for_data",
        "too_few_workers",
        "all_ranks_are_short_of_data",
        "data_prepared_outside_a_DataLoader",
    ),
    "costly-items": ("item", "collate", "slow_line", "cores"),
    "slow-storage": ("storage_latency",),
    "slow-items": ("slow_items", "stuck", "stalls"),
    "uneven-shards": ("uneven_shards",),
    "sending-batches": ("hand_over",),
    "threads": ("threads",),
    "epoch-start": ("workers_restart", "lost_cache", "one_batch_a_pass", "cold_start"),
    "hang": ("hang",),
    "growth": ("drift", "memory_growth"),
    "copies": ("copies",),
    "launches": (
        "issuing_work",
        "Python_and_tiny_operators",
        "gaps_between_kernels",
        "gaps_or_small_kernels",
    ),
    "loop-body": (
        "sync",
        "host_work_in_the_loop",
        "host_work",
        "python",
        "logging",
        "waiting",
        "loader",
        "one_by_one",
        "line",
        "switch",
    ),
    "periodic": (
        "periodic",
        "pauses_inside_steps",
        "validation",
        "checkpoints",
        "between_epochs",
    ),
    "neighbour": ("neighbour", "workers_take_the_device's_cores", "throttle"),
    "precision": ("float64", "FP32", "no_Tensor_Cores", "unaligned_sizes"),
    "padding": ("padding",),
    "ranks": (
        "one_rank_is_short_of_data",
        "one_rank_is_slower",
        "the_ranks_are_alike",
        "the_exchange_is_not_hidden",
        "exposed_collectives",
    ),
    "busy-device": (
        "the_device_is_the_limit",
        "low_MFU",
        "elementwise_chains",
        "elementwise_kernels",
    ),
    "no-verdict": (
        "too_short",
        "too_close_to_call",
        "busy_is_an_upper_bound",
        "device_not_timed",
        "body_not_seen",
        "instruments_disagree",
        "published",
    ),
    "out-of-memory": (),  # an error, or a wrong result, and no cause that a verdict states
    "nan": (),
}
# `--json` spells these with underscores, as the code does, and all others as a person reads them
UNDERSCORED_IN_JSON = (
    "one_batch_a_pass",
    "too_few_workers",
    "storage_latency",
    "slow_items",
    "uneven_shards",
    "hand_over",
    "slow_line",
    "workers_restart",
    "lost_cache",
    "cold_start",
    "memory_growth",
    "one_by_one",
    "between_epochs",
)
SAID = {"hand_over": "sending batches"}  # of a cause whose key says it less plainly
PAGE_OF = {cause: page for page, causes in PAGES.items() for cause in causes}


def page_of(cause: str) -> str:
    """Return the page of a cause as a path in the folder of the notebooks; "" without one."""
    page = PAGE_OF.get(cause)
    return f"{FOLDER}/{page}.md" if page else ""


def in_words(cause: str) -> str:
    """Return a cause as a person reads it."""
    return SAID.get(cause, cause.replace("_", " "))


def in_json(cause: str) -> str:
    """Return a cause as a program reads it."""
    return cause if cause in UNDERSCORED_IN_JSON else in_words(cause)
