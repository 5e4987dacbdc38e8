"""Which kind of work does a module do, or a function of torch or Python? The tables of names."""

from __future__ import annotations

import functools
import re

KINDS = {  # of work, by the modules that do it; the longest prefix of a module's name counts
    "forward": "torch.nn torchvision.models",
    "optimizer": "torch.optim torch.nn.utils.clip_grad torch.amp",
    "torch": "torch torch.nn.parameter torch.nn.utils triton",
    "exchange": "torch.distributed",
    "loader": "torch.utils.data",
    "checkpoint": "torch.serialization",
    "logging": "logging torch.utils.tensorboard tensorboard tensorboardX wandb mlflow tqdm csv",
    "io": "io _io os posix codecs shutil pickle _pickle sqlite3 _sqlite3 h5py",
    "wait": "threading _thread queue _queue select selectors multiprocessing "
    "torch.multiprocessing subprocess socket ssl urllib http requests concurrent",
    "proxy": "multiprocessing.managers",
    "library": "torch.utils torch.storage torchvision.transforms torchvision.io",
}
KIND_OF = {module: kind for kind, modules in KINDS.items() for module in modules.split()}
SYNC = ("item", "tolist", "cpu", "numpy", "synchronize", "nonzero")
OF_TORCH = {
    **dict.fromkeys(SYNC, "sync"),
    "backward": "backward",
    "save": "checkpoint",
    "to": "copy",
    "cuda": "copy",
    "load": "io",
    "load_state_dict": "torch",
    "zero_grad": "optimizer",
}
SAVES = re.compile(  # a line that calls what writes, by its name
    r"(^|[._])(save|savefig|imsave|imwrite|dump|to_(csv|json|parquet|pickle)|write\w*|add_(scalar|"
    r"image|histogram|figure|text)s?|log_(metric|artifact)s?)\("
)
OF_PYTHON = {"print": "logging", "open": "io", "input": "wait", "sleep": "wait"}


@functools.lru_cache(4096)
def kind_of(module: str) -> str:
    """Return the kind of work that a module does; "" where its name does not tell."""
    while module and module not in KIND_OF:
        module = module.rpartition(".")[0]
    return KIND_OF.get(module, "")
