"""One command of `eaglelab` a file: `add(command)` declares its arguments, `run(args)` calls the library and prints.

`command(name, run, help)` makes the subparser; every command has `--json`, and `run` returns the exit code.
"""
