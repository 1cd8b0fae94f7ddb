"""Listings and pictures: parameters, attention, tokens, positions, learning rate."""
