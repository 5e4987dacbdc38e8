"""`lk.cost_panel`: what a run costs, with the price and the grid in the reader's hands."""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets

from labkit.analysis.cost import Cost, cost
from labkit.results.run import Run
from labkit.show.display import allow_widgets, with_text

# (keyword of `cost`, what it is called, unit, step of the arrows)
PRICES = (
    ("usd_per_hour", "rent", "USD per hour", 0.05),
    ("usd_per_kwh", "electricity", "USD per kWh", 0.01),
    ("kg_co2_per_kwh", "grid", "kg CO2e per kWh", 0.01),
    ("samples_per_epoch", "epoch", "samples", 1000),
)


class CostPanel(widgets.VBox):
    """Boxes for prices above the table of a run's cost. `.cost` is what it shows."""

    def __init__(self, run: Run, before: Run | None):
        self.run, self.before = run, before
        first = cost(run, before=before)
        self.boxes = {
            name: widgets.BoundedFloatText(
                value=getattr(first, name) or 0.0, min=0, max=1e12, step=step,
                description=title, tooltip=f"{title}, {unit}",
                layout=widgets.Layout(width="200px"),
            )
            for name, title, unit, step in PRICES
        }  # fmt: skip
        self._asked = {name: getattr(first, name) for name in self.boxes}
        self.table = widgets.HTML()
        for name, box in self.boxes.items():
            box.observe(lambda change, name=name: self._set(name, change["new"]), "value")
        titles = [widgets.HTML(f"<small>{unit}</small>") for _, _, unit, _ in PRICES]
        pairs = [widgets.VBox(pair) for pair in zip(self.boxes.values(), titles, strict=True)]
        row = widgets.HBox(pairs, layout=widgets.Layout(flex_flow="row wrap"))
        super().__init__([row, self.table], layout=widgets.Layout(max_width="900px"))
        self._show()

    def _set(self, name: str, value: float) -> None:
        self._asked[name] = round(value) if name == "samples_per_epoch" else value
        self._show()

    @property
    def cost(self) -> Cost:
        """The cost at the prices that are set; one that has no default is None until it is."""
        return cost(self.run, before=self.before, **self._asked)

    def _show(self) -> None:
        self.table.value = self.cost._repr_html_()

    def __repr__(self) -> str:
        return repr(self.cost)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return with_text(super()._repr_mimebundle_(**kwargs), repr(self))


def cost_panel(run: Run, *, before: Run | None = None) -> CostPanel:
    """Return widgets for price, grid and epoch, and the cost of a run that follows from them.

    Args:
        run: A Run.
        before: The Run to compare it with.

    Raises:
        ValueError: A run without numbers.
    """
    allow_widgets()
    return CostPanel(run, before)
