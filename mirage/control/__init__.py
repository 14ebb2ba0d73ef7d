"""What every tenant shall hold, and when: pure, on both ends of the control socket."""
