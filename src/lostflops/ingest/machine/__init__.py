"""What `lostflops topology` and `lostflops bench` leave beside a recording, to tables."""
