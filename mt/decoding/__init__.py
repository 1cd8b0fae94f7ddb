"""A trained model and source lines in, target lines out.

`search.py` looks for the most probable target over any stepper and knows nothing of the model.
"""
