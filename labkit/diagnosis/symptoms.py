"""The pages of notebooks/symptoms: each explains the causes that a reader cannot tell apart."""

from __future__ import annotations

FOLDER = "symptoms"  # in the folder of the notebooks
PAGES = {  # the name of a page: the causes that it explains
    "too-few-workers": (
        "waiting for data",
        "too_few_workers",
        "all ranks are short of data",
        "data prepared outside a DataLoader",
        "busy_workers",
        "idle_gpu",
    ),
    "costly-items": ("item", "collate", "cores"),
    "slow-storage": ("storage_latency", "shared_supply", "all_wait"),
    "slow-items": ("slow_items", "stalls"),
    "uneven-shards": ("uneven_shards",),
    "hand-over": ("hand_over",),
    "threads": ("threads",),
    "epoch-start": ("workers_restart", "cold_start"),
    "hang": ("hang", "hang that ended"),
    "growth": ("drift", "memory_growth"),
    "copies": ("copies",),
    "launches": (
        "issuing work",
        "Python and tiny operators",
        "gaps between kernels",
        "gaps or small kernels",
    ),
    "loop-body": (
        "sync",
        "host work in the loop",
        "host work",
        "python",
        "logging",
        "waiting",
        "loader",
        "own_optimizer",
    ),
    "periodic": (
        "periodic",
        "pauses inside steps",
        "validation",
        "checkpoints",
        "between_epochs",
    ),
    "neighbour": ("neighbour", "workers take the device's cores", "throttle"),
    "precision": ("float64", "FP32", "no Tensor Cores", "unaligned sizes"),
    "padding": ("padding",),
    "ranks": (
        "one rank is short of data",
        "one rank is slower",
        "the ranks are alike",
        "the exchange is not hidden",
        "exposed collectives",
    ),
    "busy-device": (
        "the device is the limit",
        "the devices are the limit",
        "low MFU",
        "elementwise chains",
        "elementwise kernels",
        "busy_gpu",
    ),
    "no-verdict": (
        "too short",
        "too close to call",
        "busy is an upper bound",
        "device not timed",
        "body not seen",
        "instruments disagree",
        "alike",
        "published",
    ),
}
PAGE_OF = {cause: page for page, causes in PAGES.items() for cause in causes}


def page_of(cause: str) -> str:
    """Return the page of a cause as a path in the folder of the notebooks; "" without one."""
    page = PAGE_OF.get(cause)
    return f"{FOLDER}/{page}.md" if page else ""
