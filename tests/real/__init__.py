"""Pretrained models: how their folders are made, what is asked of them, how answers are judged."""
