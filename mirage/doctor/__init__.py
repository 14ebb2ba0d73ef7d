"""`mirage doctor`: tests of what works on this machine, with advice for what does not."""
