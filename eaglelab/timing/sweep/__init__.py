"""A sweep: which settings could win, a server for each, real prompts through it, every result on disk as it comes.

`plan` says what is worth trying, `command` writes the command line of a setting, `servers` starts, waits and always stops (`processes`
finds what a server left behind), `streaming` and `measure` ask and count, `store` keeps, `choose` compares, `run` does it all.
"""
