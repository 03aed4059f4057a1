"""Stats: from the events of a run to one versioned report, and from the report to all its forms. Decides nothing.

    engine events -> RunStats (counters.py) -> RunReport (report.py) -> report.json
                                 |                 |-> diagnosis.py   which pressure cost the run, and what helps
                                 |                 '-> compare.py     several runs side by side
                                 '-> tables.py -> stats/*.parquet
    RunArtifact (artifact.py): report, tables and resolved job together, in memory or read back
                                 '-> page.py, plots.py -> report.html, with the run summarised in sentences

Knows the definitions of figures and how they are shown; knows no engine and no model, and only reads output folders.
"""
