"""Source lines become target lines: windows, engines, workers, files."""
