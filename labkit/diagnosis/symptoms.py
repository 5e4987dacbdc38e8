"""The pages of notebooks/symptoms: each explains the causes that a reader cannot tell apart."""

from __future__ import annotations

FOLDER = "symptoms"  # in the folder of the notebooks
PAGE_OF: dict[str, str] = {}  # {cause: page}; `explains` fills it in where a cause is defined
PAGES_OF_NONE = ("out-of-memory", "nan")  # an error, or a wrong result: no cause of a verdict
# `--json` spells these with underscores, as the code does, and all others as a person reads them
UNDERSCORED_IN_JSON = (
    "too_few_workers",
    "storage_latency",
    "uneven_shards",
    "hand_over",
    "slow_line",
    "workers_restart",
    "cold_start",
    "memory_growth",
    "between_epochs",
)
SAID = {"hand_over": "sending batches"}  # of a cause whose key says it less plainly


def explains(page: str, *causes: str) -> None:
    """Say which page explains these causes."""
    PAGE_OF.update(dict.fromkeys(causes, page))


explains(
    "ranks",
    "one_rank_is_short_of_data",
    "one_rank_is_slower",
    "the_exchange_is_not_hidden",
)
explains("no-verdict", "published")


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
