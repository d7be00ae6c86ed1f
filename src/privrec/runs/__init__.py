"""Run folders, ledgers, the training loop, evaluation, export, and total privacy costs."""
