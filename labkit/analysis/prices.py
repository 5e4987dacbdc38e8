"""What a run is charged by default, each with its source; all of it is the reader's to change.

- `usd_per_hour`: what the device rents for at Amazon. GPUs: "EC2 Capacity Blocks for ML", effective
  rate per accelerator, list of the end of 2024 (H200 5.408, H100 4.916, A100 1.844), and g5.xlarge
  on demand, us-east-1, June 2026 (A10G 1.006). CPUs: half of m7g.large (two vCPUs) on demand,
  us-east-1, June 2026 (0.0816), per core. Other cards have no default: None.
- `kg_co2_per_kwh`: 0.473, the world's average electricity in 2024, life cycle, CO2 equivalents
  (Ember, Global Electricity Review 2025). Grids range from about 0.05 to 0.7.
- `samples_per_epoch`: 1,281,167, the training images of ImageNet-1k (ILSVRC 2012).
- `usd_per_kwh`: none, since a rent includes the electricity; give it for hardware of your own.
"""

from __future__ import annotations

import re
from typing import Any

USD_PER_HOUR = {"H200": 5.408, "H100": 4.916, "A100": 1.844, "A10G": 1.006}
USD_PER_CORE_HOUR = 0.0816 / 2
KG_CO2_PER_KWH = 0.473
SAMPLES_PER_EPOCH = 1_281_167


def usual_rent(machine: Any) -> float | None:
    """Return the default rent of a device, USD/h; None for a card that is not in the list."""
    if machine.kind == "cpu":
        return machine.cpu_cores and USD_PER_CORE_HOUR * machine.cpu_cores
    found = [usd for card, usd in USD_PER_HOUR.items() if re.search(rf"\b{card}\b", machine.name)]
    return found[0] if found else None
