"""Job: what the user asked (`load`, `resolve`) and the whole story of a run (`run`)."""
