"""Stats: events of a run to one versioned report, and the report to all that a user keeps of it. Decides nothing.

    engine events -> RunStats (counters.py) -> RunReport (report.py) -> report.json
                                 |                 |-> diagnosis.py   which pressure cost the run, and the cure
                                 |                 |-> summary.py     the run in sentences
                                 |                 '-> compare.py     several runs side by side
                                 '-> tables.py -> stats/*.parquet
    RunArtifact (artifact.py): report, tables and resolved job together, in memory or read back -> page.py, plots.py

Knows definitions of figures and how they are shown; knows no engine, no model and no output folder but to read one.
"""
