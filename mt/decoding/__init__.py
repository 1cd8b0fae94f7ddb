"""Source lines and a trained model in, target lines out.

The engine turns source ids into hypotheses; everything above it turns lines into ids and back.
"""
