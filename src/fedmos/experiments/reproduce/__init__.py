"""Tables and figures of the papers, each reproduced by one command: `fedmos reproduce NAME`.

`studies/NAME.toml` holds the comparisons to run and the published values. Training writes records, small JSON files,
from which all tables and pages are generated.
"""
