"""Speculative decoding, small and readable: the target and the drafter with KV caches, greedy chains, one request at a time.

It is the ground truth for the accept length: what it counts is what the walk of the replay predicts, verify pass by verify pass. Its
milliseconds are its own and say nothing about an engine's. Import the modules; nothing is imported here.
"""
