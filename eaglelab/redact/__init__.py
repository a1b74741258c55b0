"""`eaglelab report CASE --redact`: a run that can be shown to anybody.

What may be shown is a list of what is known to be harmless, not of what is known to be secret: numbers, and the words that eaglelab's own
code, tables and notebooks are written with (`vocabulary`), which hold the names of architectures, flags, versions and units. Every other
word is taken out, whatever brought it. Above that lies what is known of this case (`known`): its paths and the names in them, sample keys,
names of models, the user, the host, the environment's values, and runs of words of its texts; and what looks like a secret, an address
or a path (`patterns`).

The kernel does it while it shows (`veil`), since a figure turns text into pixels: tokens have no text there (`eaglelab.text.veil`), and
whatever becomes markup passes `eaglelab.reports.parts.clean`. What a notebook shows by other means is left out (`executed`). In the end
all files of the run are searched for what is known of the case (`net`): if anything is found, the run is no report.
"""
