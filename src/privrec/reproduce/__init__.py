"""The paper's tables and figures: the runs they need, stored results, and comparing sentences."""
