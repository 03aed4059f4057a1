"""The job file. Knows its keys, its YAML and its paths; knows no model and no rows."""
