"""Where the milliseconds go, what breaks even, how many steps: traces, timers and measured tables in; phases, cost and settings out."""
