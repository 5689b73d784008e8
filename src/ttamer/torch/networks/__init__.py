"""Families of networks with exits: VGG, ResNet, BERT, MPNet, GPT-2 and Llama.

The public names are those of :mod:`ttamer.torch`.
"""
