"""`mt tune`: the fastest decoding of a model that loses nothing on its validation set.

Takes a model and text and gives settings, kept in the model's folder, which decoding reads.
"""
