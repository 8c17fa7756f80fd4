"""How it is told: tables, plots, and the parts of pages that are filled from a run."""
