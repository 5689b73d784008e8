"""Families of networks with exits: VGG, BERT and GPT-2.

The public names are those of :mod:`ttamer.torch`.
"""
