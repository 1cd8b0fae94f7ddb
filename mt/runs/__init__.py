"""Contents of a run directory and a model folder: names, config, manifest, outputs; no torch."""
