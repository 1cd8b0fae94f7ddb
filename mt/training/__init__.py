"""One config becomes a trained run: the loss, the optimiser, the run directory and the loop that conducts all stages."""
