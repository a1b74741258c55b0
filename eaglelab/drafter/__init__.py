"""The drafter: its config.json, its checkpoint, the draft model in plain torch. Import the modules; nothing is imported here."""
