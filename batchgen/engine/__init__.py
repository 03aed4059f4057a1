"""Engine: runs requests over KV blocks, one step at a time. Knows token ids; knows nothing of text or of files."""
