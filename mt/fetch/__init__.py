"""Corpora by their names: `mt data get` fetches them with the package mtdata.

Takes a name and gives a folder with text and `corpus.yaml`, which training reads.
"""
