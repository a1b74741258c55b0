"""The target: its checkpoint (way b: single tensors), its forward one layer at a time (way d)."""
