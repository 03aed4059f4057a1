"""Job: what the user asked (`spec`, `load`, `resolve`) and the whole story of a run (`run`)."""
