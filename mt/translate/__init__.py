"""Source lines become target lines: windows, engines, workers, files; corpora made by a model."""
