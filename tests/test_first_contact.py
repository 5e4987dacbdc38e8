"""What a first real GPU meets, told by functions, cells and logs: nothing here needs a card."""

import json
import math
from pathlib import Path
from unittest.mock import Mock

import pynvml

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def cell(notebook, name):
    """Return the source of one cell of a notebook."""
    cells = json.loads((NOTEBOOKS / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    [source] = ["".join(each["source"]) for each in cells if each["id"] == name]
    return source


def test_one_thread_of_notebook_01_is_measured_where_a_part_of_a_card_has_no_meter():
    def utilization():
        raise pynvml.NVMLError_NotSupported

    stub = Mock()
    stub.cuda.utilization = utilization
    names = {"torch": stub, "gpu": True}
    function, _, _ = cell("01_gpu_anatomy", "anatomy-one-thread").partition("room =")
    exec(function, names)
    assert math.isnan(names["busy"](None, threads=1, seconds=0)["meter"])
