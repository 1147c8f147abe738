"""The papers' tables and figures, each by one command: `fedmos reproduce NAME`.

`studies/NAME.toml` holds what to run, as comparisons, beside what was published. Training writes records, small JSON
files, from which every table and page is made.
"""
