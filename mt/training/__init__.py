"""From a config, a run directory and a device to checkpoints, metrics and samples there."""
