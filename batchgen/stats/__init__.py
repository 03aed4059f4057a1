"""Stats: events of a run to one versioned report. Knows definitions of figures; decides nothing."""
