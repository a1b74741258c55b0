"""Faults put into healthy cases, one by one and in pairs: does eaglelab name the right one, and stay silent where nothing is wrong?

`worlds` trains tiny targets and drafters; `plan` is a case before it is written; `kinds/` has one function a kind of fault, that changes a
plan as the fault happens in the field; `server` is what serves the plan; `run` scores and writes the tables.
"""
