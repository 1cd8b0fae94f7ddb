"""What a run directory and a model folder hold: names, config, manifest, outputs; no torch."""
