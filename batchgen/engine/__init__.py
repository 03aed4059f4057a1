"""Engine: requests through blocks, one step at a time. Knows token ids only, never text or rows."""
